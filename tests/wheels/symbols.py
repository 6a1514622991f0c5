"""Read the libraries of the wheels, for `make test-wheels`: python tests/wheels/symbols.py FOLDER; needs lief.

Every library has the functions of the one that Linux on x86-64 runs, needs only what its system brings, and is of the
promised age: glibc 2.28 or older, macOS 12 or older. On macOS each page has the hash of an ad-hoc signature.
"""

import hashlib
import struct
import sys
from pathlib import Path

import lief

SYSTEM = {
    "linux": {
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    },
    "macos": {"/usr/lib/libSystem.B.dylib"},
    "windows": {
        "KERNEL32.dll",
        "ntdll.dll",
        "ADVAPI32.dll",
    },  # and Microsoft's C library, whose parts begin with api-ms-win-crt
}
GLIBC, MACOS = (2, 28), (12, 0)


def functions(path: Path) -> set[str]:
    """The functions of C that a library has for others."""
    binary = lief.parse(path)
    names = {each.name for each in binary.exported_functions}
    if isinstance(binary, lief.MachO.Binary):
        names = {name.removeprefix("_") for name in names}
    found = {name for name in names if not name.startswith("_")}
    assert found, f"{path} has no functions"
    return found


def check_elf(binary: lief.ELF.Binary, machine: lief.ELF.ARCH) -> str:
    assert binary.header.machine_type == machine
    needed = set(binary.libraries)
    assert needed <= SYSTEM["linux"], needed
    versions = [each.name for found in binary.symbols_version_requirement for each in found.get_auxiliary_symbols()]
    numbers = [
        tuple(map(int, each.removeprefix("GLIBC_").split("."))) for each in versions if each.startswith("GLIBC_")
    ]
    assert max(numbers, default=(0, 0)) <= GLIBC, versions
    assert not binary.has(lief.ELF.DynamicEntry.TAG.TEXTREL), "relocations of code"
    return "glibc " + ".".join(map(str, max(numbers))) if numbers else ""


def check_macho(binary: lief.MachO.Binary, path: Path) -> str:
    assert binary.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert binary.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    needed = {each.name for each in binary.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB}
    assert needed <= SYSTEM["macos"], needed
    assert tuple(binary.build_version.minos[:2]) <= MACOS, binary.build_version.minos
    for segment in binary.segments:
        assert not (segment.max_protection & 2 and segment.max_protection & 4), f"{segment.name} is writable code"
    for each in binary.relocations:
        assert each.segment.init_protection & 2, f"a relocation of {each.segment.name}, which is not writable"
    check_signature(path.read_bytes(), binary.code_signature.data_offset)
    return f"macOS {'.'.join(map(str, binary.build_version.minos[:2]))}, signed ad hoc"


def check_signature(content: bytes, offset: int) -> None:
    """Compare every page with the signature at `offset`, whose numbers are big-endian, as Apple's cs_blobs.h describes."""
    magic, _, count = struct.unpack_from(">III", content, offset)
    assert magic == 0xFADE0CC0
    blobs = [struct.unpack_from(">II", content, offset + 12 + 8 * i) for i in range(count)]
    directory = offset + next(at for kind, at in blobs if kind == 0)
    magic, _, _, flags, hashes, _, _, pages, limit = struct.unpack_from(">IIIIIIIII", content, directory)
    size, kind, _, shift = struct.unpack_from("BBBB", content, directory + 36)
    assert magic == 0xFADE0C02 and flags & 2, "not signed ad hoc"
    assert (size, kind) == (32, 2) and limit == offset, "hashes are not SHA-256 of all that precedes the signature"
    for page in range(pages):
        part = content[page << shift : min(limit, (page + 1) << shift)]
        at = directory + hashes + page * size
        assert hashlib.sha256(part).digest() == content[at : at + size], f"page {page} has another hash"


def check_pe(binary: lief.PE.Binary) -> str:
    assert binary.header.machine == lief.PE.Header.MACHINE_TYPES.AMD64
    needed = {each.name for each in binary.imports}
    unknown = {name for name in needed - SYSTEM["windows"] if not name.lower().startswith("api-ms-win-crt")}
    assert not unknown, unknown
    assert binary.has_relocations, "it cannot be loaded at another address"
    return f"needs {len(needed)} libraries of the system"


def check(path: Path, expected: set[str]) -> str:
    missing = expected - functions(path)
    assert not missing, f"{path}: without {missing}"
    binary = lief.parse(path)
    if isinstance(binary, lief.MachO.Binary):
        return check_macho(binary, path)
    if isinstance(binary, lief.PE.Binary):
        return check_pe(binary)
    assert isinstance(binary, lief.ELF.Binary)
    arm = "aarch64" in str(path)
    return check_elf(binary, lief.ELF.ARCH.AARCH64 if arm else lief.ELF.ARCH.X86_64)


def main(folder: Path) -> None:
    lief.logging.disable()
    native = folder / "linux-x86_64"
    expected = {path.stem: functions(path) for path in (*native.glob("*.so"), *native.glob("avx2/*.so"))}
    for platform in sorted(path for path in folder.iterdir() if (path / "kernels.json").exists()):
        found = sorted(path for path in platform.rglob("*") if path.suffix in (".so", ".dylib", ".dll"))
        results = [check(path, expected[path.stem]) for path in found]
        print(f"{platform.name}: {len(found)} libraries; {', '.join(sorted(filter(None, set(results))))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
