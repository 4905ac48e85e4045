"""Whether a lower loss means higher scores: each task against the loss, beside what needs no pre-training.

    python analysis/loss_and_scores.py [-- --folder results/loss_and_scores]
    marimo edit analysis/loss_and_scores.py

The folder is `--folder`, else $STUDY_RESULTS, else results/loss_and_scores, else results/reference/loss_and_scores.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo

    from study.base.text import bullets, echo, escape
    from study.plotting import parameters_loss_score, score_against_loss
    from study.report.findings import run_count
    from study.report.notebooks import gather_scored, opened, scrolling_tables
    from study.report.score_sentences import law_table, published_table, score_findings, scores_frame, trend_table

    return (
        Path,
        bullets,
        echo,
        escape,
        gather_scored,
        law_table,
        mo,
        opened,
        parameters_loss_score,
        published_table,
        run_count,
        score_against_loss,
        score_findings,
        scores_frame,
        scrolling_tables,
        trend_table,
    )


@app.cell
def _(Path, echo, gather_scored, opened, run_count, score_findings):
    evidence = opened(Path("results"), "loss_and_scores", gather_scored)
    findings = score_findings(evidence)
    echo("\n".join([f"{evidence.folder.name}: {run_count(evidence)}", *findings]))
    return evidence, findings


@app.cell
def _(bullets, escape, evidence, findings, mo):
    mo.md(f"# {escape(evidence.sweep.question)}\n\n{bullets(findings)}")
    return


@app.cell
def _(evidence, parameters_loss_score):
    _data = parameters_loss_score.frame(evidence)
    "No average over tasks to draw." if _data.empty else parameters_loss_score.draw(_data)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Each task

    A task follows the loss where its points rise from left to right. Pre-training shows where they are above the crosses, the
    same encoders untrained.
    """)
    return


@app.cell
def _(evidence, score_against_loss):
    _data = score_against_loss.frame(evidence)
    "No trained encoder has a score." if _data.empty else score_against_loss.draw(_data)
    return


@app.cell
def _(mo):
    mo.md("""
    ## Scores beside baselines

    Each encoder's mean over its runs and the seeds of fine-tuning, beside what needs no pre-training. Noise is over examples and
    between seeds, of pre-training where an encoder has several, else of fine-tuning.
    """)
    return


@app.cell
def _(evidence, scores_frame):
    told = scores_frame(evidence)
    told[["task", "encoder", "score", "± 95%", "untrained", "majority class", "bag of words"]].round(3)
    return (told,)


@app.cell
def _(evidence, law_table, published_table, scrolling_tables, trend_table):
    _tables = {
        "Rank correlations with the falling loss": trend_table(evidence),
        "Laws from the loss to the score": law_table(evidence),
        "Beside published scores": published_table(evidence),
    }
    scrolling_tables("\n\n".join(f"## {_title}\n\n{_table}" for _title, _table in _tables.items() if _table))
    return


if __name__ == "__main__":
    app.run()
