"""The user that runs the tests, where the system has users as POSIX knows them."""

import os

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
