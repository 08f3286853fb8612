"""Items from a data set on the Hugging Face hub, or from a folder that the `datasets` library reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo_exp.errors import DataError
from grpo_exp.options import option
from grpo_exp.rows.read import Row, RowFault, one_line
from grpo_exp.rows.source import RowSource


@dataclass
class HubData(RowSource):
    """A data set of the hub. `split` may name another of its splits, which then holds the held-out items."""

    path: str | None = option("the data set's id on the hub, such as openai/gsm8k, or a local folder")
    subset: str | None = option("which configuration of the data set; null: its only or default one")
    revision: str | None = option("commit, branch or tag of the data set; null: the newest. A commit makes runs repeatable")
    hub_split: str = option("which of its splits the items come from")

    def rows(self) -> Iterable[Row | RowFault]:
        return self._read(self.hub_split)

    def heldout_rows(self, name: str) -> Iterable[Row | RowFault]:
        return self._read(name)

    def origin(self) -> str:
        subset = "" if self.subset is None else f"/{self.subset}"
        return one_line(f"hub {self.path}{subset} {self.hub_split} at {self.revision or 'the newest revision'}", 200)

    def _read(self, split: str) -> Iterator[Row | RowFault]:
        if self.path is None:
            raise DataError(f"data={self.name} needs data.path=ID, a data set's id on the hub such as openai/gsm8k")
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise DataError(f"data={self.name} needs the datasets library: pip install 'grpo-exp[hub]'") from error
        try:
            data = load_dataset(self.path, name=self.subset, split=split, revision=self.revision)
        except Exception as error:  # the library, its network client and its parsers share no base class
            offline = " HF_HUB_OFFLINE is set: only data sets in the local cache can be read." if _offline() else ""
            raise DataError(
                f"data.path={one_line(self.path)}: the split '{one_line(split)}' cannot be loaded from the hub "
                f"({type(error).__name__}: {one_line(str(error), 200)}).{offline} Check data.path, data.subset, "
                "data.revision and data.hub_split, or download the rows and use data=file data.path=FILE"
            ) from error
        for number, fields in enumerate(data, 1):
            yield Row(f"{one_line(self.path)} {one_line(split)}: row {number}", number, dict(fields))


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
