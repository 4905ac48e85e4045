"""The files of runs and sweeps: only this room knows the layout of a results folder.

A run lies in its own folder, in its sweep's pack, or partly in both. `RunFolder` and `ScoreFolder` read both; use only them.

results/<sweep>/
    sweep.yaml, cells.json      the sweep as launched; its cell ids, or a search's points so far
    runs/<run id>/
        config.yaml             written first
        metrics.jsonl           one line a logged step
        attempts/0001.json      one file a start; the latest owns the run (study.store.ownership)
        attempts/0001.record.json   the record of that start, if retried
        checkpoints/step-<step>-<sha256>.ckpt   kept until the run is completed
        orders.json             the sweep's requests beside the configuration; no effect on the numbers
        prune.json              why the search stops the run
        branch-<step>/          state and rows at a shorter budget's end, until that run has them
        trunk.json              the run that trained the first steps, and how many, if any
        validation_losses.npy   nats summed over the masked tokens of each validation sequence, float64
        validation_documents.npy  the document of each validation sequence, int32
        byte_losses.npy           nats per byte of the masked words of each document, float64
        weights.safetensors     the final weights
        log.txt                 process output
        rank-<rank>.json        the error of a rank that does not lead, until the next start
        record.json             written last, once, by linking a finished file into place
        exclusion.json          why a person leaves the run out of fits
        scores/<score id>/      downstream scores, see study.store.score_records
    ledger.parquet, ledger.csv  rebuilt from the records
    scores.parquet, scores.csv  rebuilt from downstream scores
    baselines/*.json            downstream results without an encoder; *.txt are logs
    fits/*.json  figures/*.svg  answer.md
    packed/<number>/            packed runs, see study.store.packed
results/.homes/<run id>         a link to the run's folder in the sweep that trains it, for sweeps that share it
"""
