"""What a sweep answers, depth_or_width if none is given: the verdict, the figures behind it, and all findings.

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

    from study.base.text import bullets, echo, escape
    from study.evidence.evidence import gather
    from study.report.answer import FINDINGS, Answer
    from study.report.answer_tables import cells
    from study.report.figures import FIGURES
    from study.report.notebooks import opened, scrolling_tables

    return (
        Answer,
        FIGURES,
        FINDINGS,
        Path,
        bullets,
        cells,
        echo,
        escape,
        gather,
        mo,
        opened,
        scrolling_tables,
    )


@app.cell
def _(Answer, Path, echo, gather, opened):
    evidence = opened(Path("results"), "depth_or_width", gather)
    answer = Answer(evidence, {})
    verdict = answer.verdict
    echo(verdict.sentence)
    return answer, evidence, verdict


@app.cell
def _(escape, evidence, mo, verdict):
    mo.md(f"""
    # {escape(evidence.sweep.question)}

    **{escape(verdict.sentence)}**

    How sure: {escape(verdict.certainty)}

    What would change this: {escape(verdict.change)}.
    """)
    return


@app.cell
def _(FIGURES, evidence, verdict):
    _frames = ((FIGURES[_name][0], FIGURES[_name][0].frame(evidence)) for _name in verdict.figures)
    figures = [_module.draw(_data) for _module, _data in _frames if not _data.empty]
    figures[0] if figures else "No figure has data yet."
    return (figures,)


@app.cell
def _(figures):
    figures[1] if len(figures) > 1 else ""
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
def _(cells, evidence, scrolling_tables):
    scrolling_tables("## Cells\n\n" + cells(evidence))
    return


@app.cell
def _(answer, bullets, mo):
    mo.md("## What the evidence does not decide\n\n" + bullets(answer.findings["undecided"]))
    return


if __name__ == "__main__":
    app.run()
