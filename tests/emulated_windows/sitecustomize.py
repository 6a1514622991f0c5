"""On PYTHONPATH, this is imported at the start of every Python process."""

import emulation

emulation.install()
