# Two images from one file; neither runs as root.
#   docker build --target operator -t resumable-training/operator:0.1.0 .   the operator; brings the agent; no torch
#   docker build --target worker   -t resumable-training/worker:0.1.0 .     torch and the library, to put a script on
# A mirror or another Python: --build-arg PYTHON_IMAGE=...; an index of your own: --secret id=pip.conf,src=pip.conf,
# and --secret id=ca.pem,src=ca.pem for its authority (`cert = /run/secrets/ca.pem` there). No layer keeps either.
ARG PYTHON_IMAGE=python:3.11.15-slim-trixie@sha256:db3ff2e1800a8581e2c48a27c3995339d47bdf046da21c7627accd3d51053a93

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY constraints.txt ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    python -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY operator/ operator/
COPY worker/ worker/
RUN python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels .
# For pip, which leaves the choice to Python: bytecode is then held to a hash of its source, and not to its time,
# which a builder may rewrite. An old time would have each start compile all of it again.
ENV SOURCE_DATE_EPOCH=1580601600

FROM wheel AS operator-environment
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    python -m venv --without-pip /opt/venv \
    && python -m pip --python /opt/venv install --no-cache-dir --disable-pip-version-check -c constraints.txt \
    "/wheels/resumable_training-0.1.0-py3-none-any.whl[operator]"

# With pip, for images that add packages to it.
FROM wheel AS worker-environment
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    python -m venv /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt \
    "/wheels/resumable_training-0.1.0-py3-none-any.whl[worker]"

FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 1000 resumable \
    && useradd --no-log-init --create-home --uid 1000 --gid 1000 resumable
# The official images leave out the standard library's bytecode, and pods can't keep what they compile. Also (-f)
# what Python itself has kept by then, with its source's time.
RUN python -m compileall -f -q --invalidation-mode checked-hash \
    -x '/(site-packages|dist-packages|test|tests|lib2to3|idlelib)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"

# Only jobs' pods run it. A job's template sets the command; the agent is put in front of it.
FROM base AS worker
LABEL org.opencontainers.image.title="resumable-training worker" \
      org.opencontainers.image.description="PyTorch with the library for training that resumes exactly"
COPY --from=worker-environment /opt/venv /opt/venv
USER 1000:1000
WORKDIR /home/resumable

FROM base AS operator
LABEL org.opencontainers.image.title="resumable-training operator" \
      org.opencontainers.image.description="Keeps ResumableTrainingJobs running, and brings the agent for their pods"
COPY --from=operator-environment /opt/venv /opt/venv
USER 1000:1000
WORKDIR /home/resumable
EXPOSE 8080
ENTRYPOINT ["python", "-m", "resumable_operator"]
