"""The story of a sweep, depth_or_width if none is given, from its ledger, with the functions that `study report` uses.

    python analysis/depth_or_width.py [-- --folder results/depth_or_width]
    marimo edit analysis/depth_or_width.py

The folder is `--folder`, else $STUDY_RESULTS, else results/depth_or_width, else results/reference/depth_or_width.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell
def _():
    import os
    import sys
    from pathlib import Path

    import marimo as mo
    import pandas as pd

    from study.answering import FIGURES, Answer
    from study.errors import InputError
    from study.findings import loss_findings, parameter_findings
    from study.fitting.evidence import gather
    from study.folders import SweepFolder
    from study.open_questions import undecided
    from study.wording import escape

    return (
        Answer,
        FIGURES,
        InputError,
        Path,
        SweepFolder,
        escape,
        gather,
        loss_findings,
        mo,
        os,
        parameter_findings,
        pd,
        sys,
        undecided,
    )


@app.cell
def _(Answer, InputError, Path, SweepFolder, escape, gather, mo, os, sys):
    results = Path(__file__).resolve().parents[1] / "results"
    places = [results / "depth_or_width", results / "reference" / "depth_or_width"]
    given = mo.cli_args().get("folder") or os.environ.get("STUDY_RESULTS")
    place = Path(given) if given else next((path for path in places if path.exists()), places[0])
    try:
        evidence = gather(SweepFolder(place))
    except InputError as error:
        if mo.app_meta().mode == "script":
            print(*(f"error: {problem}" for problem in error.problems), sep="\n", file=sys.stderr)
            sys.exit(2)
        mo.stop(True, mo.callout(mo.md("\n\n".join(escape(problem) for problem in error.problems)), kind="danger"))
    answer = Answer(evidence, ())
    print(answer.headline)
    return answer, evidence


@app.cell
def _(escape, evidence, mo):
    mo.md(f"""
    # {escape(evidence.sweep.get("question", evidence.folder.name))}

    {evidence.runs_started} runs were started, {len(evidence.ledger)} ended, {len(evidence.excluded)} are excluded.
    """)
    return


@app.cell
def _(escape, evidence, mo, parameter_findings):
    mo.md("## Parameters, counted\n\n" + "\n".join(f"- {escape(line)}" for line in parameter_findings(evidence)))
    return


@app.cell
def _(escape, evidence, loss_findings, mo):
    mo.md("## Loss, measured\n\n" + "\n".join(f"- {escape(line)}" for line in loss_findings(evidence)))
    return


@app.cell
def _(FIGURES, evidence, mo):
    figures = []
    for _module, _caption in FIGURES.values():
        _data = _module.frame(evidence)
        if not _data.empty:
            figures.append(mo.vstack([mo.md(f"### {_caption}"), mo.as_html(_module.draw(_data))]))
    mo.vstack(figures)
    return


@app.cell
def _(answer, pd):
    pd.DataFrame(answer.to_dict()["cells"])
    return


@app.cell
def _(escape, evidence, mo, undecided):
    mo.md("## What the evidence does not decide\n\n" + "\n".join(f"- {escape(line)}" for line in undecided(evidence)))
    return


if __name__ == "__main__":
    app.run()
