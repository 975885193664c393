"""What an agent keeps for the next attempt on its worker: writers that still store, and the memory for it.

Messages (``framing``) on the unix socket that ``env.KEEPER`` names, one connection for each process.
``hello`` comes first, from a process in the session of a rank of the running attempt. Whoever cannot connect
does without: its writer ends with its rank, and the next attempt reads from storage.
"""

HELLO = "hello"  # {role, attempt, rank, slot, slots, pid}; slot: LOCAL_RANK, slots: how many
WELCOME = "welcome"  # from the agent: what this process holds may outlive its rank
WRITER = "writer"  # roles
RANK = "rank"

# From a writer --------------------------------------------------------------------------------------
ARENA = "arena"  # {bytes} and a descriptor: the memory that its rank copies into from now on
# {checkpoint, step, samples, durable, worth, held}, and a descriptor: what lies in the arena, as JSON. The
# rank's copy is complete. ``durable``: seconds from copy to commit lately, 0 unknown; ``worth``: seconds of
# training that this checkpoint has more than the one before; ``held``: its storing begins only now, its rank
# is dead.
FLIGHT = "flight"
LANDED = "landed"  # {checkpoint, ok, message, bytes, seconds}: how it ended

# From a rank of the next attempt ----------------------------------------------------------------------
AWAIT = "await"  # answered once no writer of an older attempt is left
SETTLED = "settled"  # {waited, flights: [{checkpoint, step, ok, message, bytes, seconds}]}
FIND = "find"  # {checkpoint}: answered by FOUND for each arena with something of it, then END
FOUND = "found"  # {bytes} and two descriptors: arena, and what lies in it
END = "end"
TAKE = "take"  # {bytes}: the slot's arena to copy into, if it is large enough; else it is given up
TAKEN = "taken"  # {bytes} and a descriptor, or {bytes: -1} alone
