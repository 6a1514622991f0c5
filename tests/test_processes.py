"""Processes are ended together with all that they have started."""

import asyncio
import sys

from partwise.processes import OWN_SESSION, AsyncGroup
from processes import gone

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_of_asyncio_ends_with_its_children() -> None:
    async def start_and_kill() -> tuple[int, int]:
        words = [sys.executable, "-c", PARENT]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, **OWN_SESSION)
        group = AsyncGroup(process)
        assert process.stdout
        child = int(await process.stdout.readline())
        group.kill()
        await process.wait()
        group.kill()  # of one that has ended
        return process.pid, child

    assert all(gone(pid) for pid in asyncio.run(start_and_kill()))
