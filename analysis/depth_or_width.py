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
    from pathlib import Path

    import marimo as mo

    from study.report.answer import FINDINGS, Answer
    from study.report.figures import FIGURES
    from study.report.notebooks import opened, scrolling_tables
    from study.report.answer_tables import cells
    from study.base.text import bullets, escape

    return (
        Answer,
        FIGURES,
        FINDINGS,
        Path,
        bullets,
        cells,
        escape,
        mo,
        opened,
        scrolling_tables,
    )


@app.cell
def _(Answer, Path, opened):
    evidence = opened(Path("results"), "depth_or_width")
    answer = Answer(evidence, ())
    print(answer.headline)
    return answer, evidence


@app.cell
def _(escape, evidence, mo):
    mo.md(f"""
    # {escape(evidence.sweep.question)}

    {evidence.runs_started} runs were started, {len(evidence.ledger)} ended, {len(evidence.excluded)} are excluded.
    """)
    return


@app.cell
def _(FINDINGS, answer, bullets, mo):
    mo.md(
        "\n\n".join(
            f"## {_title}, {_how}\n\n{bullets(answer.findings[_name])}"
            for _name, (_title, _how) in FINDINGS.items()
            if answer.findings[_name]
        )
    )
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
def _(cells, evidence, scrolling_tables):
    scrolling_tables("## Cells\n\n" + cells(evidence))
    return


@app.cell
def _(answer, bullets, mo):
    mo.md("## What the evidence does not decide\n\n" + bullets(answer.findings["undecided"]))
    return


if __name__ == "__main__":
    app.run()
