"""The tiny training on workers that each see a directory of their own under the path of the checkpoints."""

import json
import os

import train_tiny

config = json.loads(os.environ["RESUMABLE_CHECKPOINT_CONFIG"])
config["directory"] = f"{config['directory']}/{os.environ['RESUMABLE_WORKER']}"
os.environ["RESUMABLE_CHECKPOINT_CONFIG"] = json.dumps(config)

if __name__ == "__main__":
    train_tiny.main()
