"""Whether a lower loss means higher scores: each task against loss, parameters and FLOPs, beside what needs no pre-training.

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

    from study.report.findings import run_count
    from study.report.notebooks import gather_scored, opened, scrolling_tables
    from study.plotting.score_figures import AXES, FIGURES
    from study.report.score_sentences import SCORES, law_table, published_table, score_findings, scores_frame, trend_table
    from study.base.text import bullets, escape

    return (
        AXES,
        FIGURES,
        SCORES,
        Path,
        bullets,
        escape,
        gather_scored,
        law_table,
        mo,
        opened,
        published_table,
        run_count,
        score_findings,
        scores_frame,
        scrolling_tables,
        trend_table,
    )


@app.cell
def _(Path, gather_scored, opened, run_count, score_findings):
    evidence = opened(Path("results"), "loss_and_scores", gather_scored)
    findings = score_findings(evidence)
    print(f"{evidence.folder.name}: {run_count(evidence)}", *findings, sep="\n")
    return evidence, findings


@app.cell
def _(bullets, escape, evidence, findings, mo, run_count):
    mo.md(f"# {escape(evidence.sweep.question)}\n\n{run_count(evidence)}.\n\n" + bullets(findings))
    return


@app.cell
def _(SCORES, evidence, mo, scores_frame):
    _told = scores_frame(evidence)
    _first = ["task", "encoder", "score", "± 95%", "untrained", "majority class", "bag of words"]
    _fractions = [name for name in _told.select_dtypes("float") if name != "parameters"]
    mo.vstack(
        [
            mo.md(
                f"""
                ## Scores beside baselines

                A score says what pre-training gave only so far as it is above what stands right of it: the same architecture
                untrained, the majority class, and a bag of words. {SCORES}
                """
            ),
            mo.ui.table(
                _told[[*_first, *_told.columns.drop(_first)]],
                selection=None,
                page_size=20,
                show_column_summaries=False,
                show_data_types=False,
                format_mapping=dict.fromkeys(_fractions, "{:.4f}".format) | {"parameters": "{:,}".format},
            ),
        ]
    )
    return


@app.cell
def _(AXES, mo):
    axis = mo.ui.dropdown(
        {words: column for column, words in AXES.items()}, value=AXES["loss_nats"], label="against", full_width=True
    )
    return (axis,)


@app.cell
def _(FIGURES, axis, evidence, mo):
    _frame, _draw = FIGURES[axis.value]
    _data = _frame(evidence)
    mo.vstack(
        [
            mo.md(
                """
                ## Each task

                Points are encoders with their 95% intervals: a task follows what is on the axis where its points rise from left
                to right, and pre-training shows where they are above the crosses, the same encoders untrained; against the loss
                the law from one to the other is drawn, too.
                """
            ),
            axis,
            mo.md("No encoder here was trained, so that none has a place on this axis.")
            if _data.empty
            else mo.as_html(_draw(_data)),
        ]
    )
    return


@app.cell
def _(evidence, scrolling_tables, trend_table):
    scrolling_tables(
        "## Rank correlations\n\n"
        "+1 is a task that puts encoders in the order of their losses; an interval that holds zero, or a Holm p of 0.05 "
        "and more, decides nothing, and the average is the last row.\n\n" + trend_table(evidence)
    )
    return


@app.cell
def _(evidence, law_table, scrolling_tables):
    scrolling_tables(
        "## From the loss to the score\n\n"
        "Two steps lead from sizes to a loss and from the loss to a score: a law serves where its status is *converged* "
        "and it forecasts the largest encoders from the others.\n\n" + law_table(evidence)
    )
    return


@app.cell
def _(evidence, published_table, scrolling_tables):
    scrolling_tables(
        "## Beside BERT's miniatures\n\n"
        "Published scores are of other text, other vocabularies and another split, so that they say what a size can "
        "reach, not what is wrong here.\n\n"
        + (published_table(evidence) or "None is published of these tasks by these metrics.")
    )
    return


if __name__ == "__main__":
    app.run()
