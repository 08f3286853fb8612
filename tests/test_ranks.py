"""Who computes what, and where a process learns which of several it is. No process is started here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st
from toy_policy import batch, policy

from grpo_exp.batch import PairBatch
from grpo_exp.errors import ConfigError
from grpo_exp.ranks import ALONE, Place, Ranks, given
from grpo_exp.several import shares


@for_all(count=st.integers(0, 50), ranks=st.integers(1, 9))
def test_a_share_is_fair_and_nothing_is_left_out(count: int, ranks: int) -> None:
    parts = []
    for rank in range(ranks):
        one = Ranks()
        one.rank, one.count = rank, ranks
        parts.append(one.share(count))
    assert [i for part in parts for i in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_rows_are_shared_by_whole_groups(count: int) -> None:
    """Rows in mixed order: each is some rank's, those of a group the same one's, in the order that they had."""
    made = batch(policy("llama"))
    parts = shares(made, count)
    assert len(parts) == count
    assert torch.cat(parts).sort().values.tolist() == list(range(len(made)))
    owner = {int(row): rank for rank, part in enumerate(parts) for row in part}
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    for group in made.group.unique():
        assert len({owner[int(row)] for row in (made.group == group).nonzero()}) == 1


def test_shares_have_about_as_many_tokens() -> None:
    """Eight groups, one of them as long as the seven others together: it is alone."""
    length = torch.tensor([70] + [10] * 7)
    mask = torch.arange(70) < length[:, None]
    prompt = torch.ones(8, 1, dtype=torch.bool)
    made = PairBatch(
        prompt.long(),
        prompt,
        torch.arange(8).repeat_interleave(2),
        mask.long().repeat_interleave(2, 0),
        mask.repeat_interleave(2, 0),
        mask.repeat_interleave(2, 0),
    )
    assert [part.tolist() for part in shares(made, 2)] == [[0, 1], list(range(2, 16))]


def test_one_process_alone_does_nothing() -> None:
    made = batch(policy("llama"))
    assert ALONE.own(made) is made
    assert ALONE.exchange(3) == [3]
    assert list(ALONE.share(5)) == [0, 1, 2, 3, 4]


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "9"}
SRUN = {
    "SLURM_JOB_ID": "41234",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "node[07-08]",
}


def test_the_place_that_a_launcher_gives() -> None:
    assert given(TORCHRUN) == Place(3, 4, 1, 2, "a", 9)
    assert given(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}) == Place(3, 4, 1, 2, "a", 9, served=True)
    assert given(SRUN) == Place(3, 4, 1, 2, "node07", 21_234)
    assert given(SRUN | {"MASTER_ADDR": "b", "MASTER_PORT": "5"}) == Place(3, 4, 1, 2, "b", 5)
    made = Place(1, 2, 1, 2, "127.0.0.1", 4, served=True)
    assert given(made.environment()) == made


@pytest.mark.parametrize(
    ("nodes", "first"), [("a", "a"), ("a,b", "a"), ("gpu-[3,5-9]", "gpu-3"), ("x[001-010],y[1-2]", "x001"), ("n1,n[2-3]", "n1")]
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    place = given(SRUN | {"SLURM_STEP_NODELIST": nodes})
    assert place is not None and place.host == first


def test_no_place_where_there_is_one_process() -> None:
    """A batch script of Slurm has a number too, and its tasks are those of the job: it is alone all the same."""
    assert given({}) is None
    assert given({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert given({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}) is None
    assert given(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) is None


def test_a_place_that_is_half_said_is_refused() -> None:
    with pytest.raises(ConfigError, match="the environment has no MASTER_PORT"):
        given({name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"})
    with pytest.raises(ConfigError, match="a number is wrong"):
        given(TORCHRUN | {"RANK": "x"})
