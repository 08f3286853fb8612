"""a saved W&B view of a project by beta and by G: workspace [--entity NAME --project NAME]

    python -m grpo_exp workspace --entity my-team               saved in W&B; needs a login and pip install wandb-workspaces
    python -m grpo_exp workspace --out view.json                its JSON, without a login

The view has the curves of all runs, the same grouped by beta and by G with bands, parallel coordinates, the importance of
what was searched, and reward against KL. It was built with W&B's own package; what W&B's page makes of it was not seen.
"""

from __future__ import annotations

from pathlib import Path

from grpo_exp.flags import Flags


def main(words: list[str]) -> int:
    """Save the view or write its JSON.

    Raises:
        InputError: a wrong word, a missing package, or a file that cannot be written.
        RunError: W&B refused it.
    """
    from grpo_exp.track.workspace import save

    parser = Flags("workspace", allow_abbrev=True)
    parser.add_argument("--entity")
    parser.add_argument("--project", default="grpo_exp")
    parser.add_argument("--metric", default="eval/pass@1")
    parser.add_argument("--out", type=Path, default=Path("outputs/workspace.json"))
    given = parser.parse_args(words)
    print(save(given.entity, given.project, given.metric, given.out))
    return 0
