"""Many texts as one corpus: JSON lines, or a folder of files."""

import hashlib
import json
import os
from abc import abstractmethod
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, digest, part
from partwise.data.corpora import Corpus, border_between, join, read_text
from partwise.tokenizers import Text


class Documents(Corpus):
    """Many texts, joined by `separator`, cut between two of them; empty ones are left out.

    The first ones, 90 % of the characters, are for training; the others validate, but for those that training holds too.
    """

    path: str
    separator: str = "\n"

    @abstractmethod
    def documents(self) -> list[str]:
        """The texts in their order, none of them empty. Raises ConfigError."""

    def alphabet(self) -> str:
        return "".join(sorted(set(self.separator.join(self.documents()))))

    def splits(self) -> dict[str, Text]:
        documents = self.documents()
        border = border_between(documents, self.separator)
        train = set(documents[:border])
        validation = [document for document in documents[border:] if document not in train]
        splits = join(documents[:border], validation, self.separator)
        if not train or min(map(len, splits.values())) < 2:
            raise ConfigError(
                f"{self.path} holds {len(documents)} texts that are not empty, and none is left to validate on: give "
                "more, and different ones"
            )
        return splits


@part("jsonl")
class JsonLines(Documents):
    """A JSON object per line of the file `path`, its text under the key `field`; training and validation share none.

    The texts are joined by `separator`; the first ones, 90 % of the characters, are for training.
    """

    field: str = "text"

    def documents(self) -> list[str]:
        content, _ = read_text(Path(self.path))
        # not splitlines: a JSON string may hold characters that end a line elsewhere
        lines = enumerate(content.removeprefix("\ufeff").split("\n"), start=1)
        return [text for number, line in lines if line.strip() and (text := self._text(number, line))]

    def identity(self) -> dict[str, Any]:
        return {**self.to_dict(), "path": "", "sha256": read_text(Path(self.path))[1]}

    def _text(self, number: int, line: str) -> str:
        try:
            text = json.loads(line)[self.field]
            text.encode()
        except UnicodeEncodeError:
            reason = "half of a surrogate pair in its text: remove it"
        except (ValueError, RecursionError) as error:
            reason = f"no JSON ({error}): give one JSON object per line"
        except (KeyError, IndexError, TypeError, AttributeError):
            reason = f"no text under the key {self.field!r}: name the key that has it, as in data.field=KEY"
        else:
            return str(text)
        raise ConfigError(f"{self.path} line {number} has {reason}")


@part("folder")
class Folder(Documents):
    """The text files in the folder `path` and below whose names match `files`; training and validation share none.

    Hidden files and folders are left out; the others come in the order of their paths, joined by `separator`. The
    first ones, 90 % of the characters, are for training.
    """

    files: str = "*"

    def documents(self) -> list[str]:
        root = Path(self.path)
        if "\0" in self.path or not root.is_dir():
            raise ConfigError(f"{self.path!r} is no folder: give the path of a folder with text files in it")
        paths: list[Path] = []
        for folder, inner, names in os.walk(root):
            inner[:] = [name for name in inner if not name.startswith(".")]
            wanted = [name for name in names if not name.startswith(".") and fnmatchcase(name, self.files)]
            paths += [path for name in wanted if (path := Path(folder, name)).is_file() and path.stat().st_size]
        try:
            return [read_text(path)[0] for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix())]
        except ConfigError as error:
            raise ConfigError(f"{error}; or choose the folder's text files, as in data.files=*.txt") from None

    def identity(self) -> dict[str, Any]:
        content = digest([hashlib.sha256(document.encode()).hexdigest() for document in self.documents()])
        return {"part": self.name, "separator": self.separator, "sha256": content}
