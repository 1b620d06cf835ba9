"""Rows of scripts of one process whose batches are split by their DataLoaders (CASTOR_BATCH=loader): each rank's script has its part. What
compares or counts the samples of a batch is refused there."""

from declared import cases_in
from expect import adaptive, agreement, like, sgd

OPTION = "CASTOR_BATCH=loader"
SCRIPTS = (
    "accumulate.py", "audited.py", "batch_norm.py", "batches.py", "chance.py", "in_batch_losses.py", "loops.py", "samplers.py", "shapes.py", "tokens.py",
)


def _refused(reason, pattern, *options):
    return like(sgd, reason=reason, refused=pattern, options=options)


_NO_WHOLE_GRADIENT = "parts of a batch give no whole gradient there"
_ANOTHER_VALUE = "a part of the batch has another value"
_NO_WEIGHT = "each term would need another weight"
_CANNOT = "this batch cannot be split"
_COMPARED = "compares the samples of a batch"

# {script: {the row's title without the option, which it gets: what it must show where that is not what the row without it does}}
OTHERS = {
    "loops.py": {
        "clipped_by_the_batch": _refused("each rank has a part of the batch, and so another limit", "clip the gradients by different limits"),
        "complex_weights": _refused("the store has no sums of complex numbers", "its dtype is torch.complex"),
        "local_gradients_only": _refused(_NO_WHOLE_GRADIENT, "autograd.grad"),
        "sum_of_losses": _refused("a loss is taken for a mean over the batch, and the audit finds a sum", "set CASTOR_LOSS=sum"),
        "sum_of_losses, CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
    },
    "tokens.py": {
        "one_sample_left": like(sgd, says_not="the loss"),
        "sums_divided_by_what_two_batches_count": like(sgd, says_not="looks like a sum"),
        "ignored, CASTOR_LOSS=tokens": like(sgd, options=("CASTOR_LOSS=tokens",)),
        "elements_selected, CASTOR_LOSS=tokens": like(sgd, options=("CASTOR_LOSS=tokens",)),
        "sums_accumulated, CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
        "sums_accumulated": _refused("a sum is taken for a mean", "set CASTOR_LOSS=sum"),
        "elements_selected": _refused("they might be padding", "elements on the ranks.*CASTOR_LOSS=tokens"),
        "padded_to_the_longest": _refused("the padding of a part is not the batch's", "elements on the ranks"),
        "two_heads": _refused(_NO_WEIGHT, "adds a mean over counted targets"),
        "another_mean_beside": _refused(_NO_WEIGHT, "adds a mean over counted targets"),
        "not_counted, CASTOR_LOSS=tokens": _refused("there is no count", "finds nothing that was counted", "CASTOR_LOSS=tokens"),
        "not_counted": _refused("neither a sum nor a mean: it is taken for a mean", _CANNOT),
        "not_counted, CASTOR_AUDIT=0": like(
            agreement, reason="it is taken for a mean, and Castor says so", options=("CASTOR_AUDIT=0",), says="taken for a mean over samples"
        ),
        "sums_accumulated, CASTOR_AUDIT=0": like(
            agreement, reason="it is taken for a mean, and Castor says so", options=("CASTOR_AUDIT=0",), says="looks like a sum"
        ),
        "contrastive": _refused("a part has fewer samples to compare with", _COMPARED),
    },
    "batch_norm.py": {
        "sum_of_losses": _refused("a loss is taken for a mean over the batch, and the audit finds a sum", "set CASTOR_LOSS=sum"),
        "sum_of_losses, CASTOR_LOSS=sum": like(sgd, options=("CASTOR_LOSS=sum",)),
        **{name: _refused("compiled code does not come through Python", "code of torch.jit") for name in ("scripted", "scripted_after_others")},
    },
    "batches.py": {
        "two_loaders_of_odd_sizes": _refused("parts of one loss must weigh the same in both batches", "cannot split them alike"),
    },
    "chance.py": {
        "counts_that_depend_on_values": like(agreement, reason="each rank draws numbers of its own", says="audit of split batches is loose"),
        "list_of_each_part": _refused("nothing tells that the numbers are the samples'", "cannot be split"),
    },
    "in_batch_losses.py": {
        "ranked_among_negatives": _refused("a part has fewer samples to compare with", _COMPARED),
        "each_for_itself": sgd,
    }
    | {case: _refused(_ANOTHER_VALUE, _CANNOT) for case in cases_in("in_batch_losses.py") if case not in ("", "ranked_among_negatives", "each_for_itself")},
    "audited.py": {
        "drawn_on_a_thread": like(sgd, says="drawn on another thread"),
        "larger_batches_are_refused": like(sgd, says="not compared with whole ones.*ValueError.*at most 4 samples"),
        "another_loss_later": _refused("a part has fewer samples to compare with", _CANNOT),
        "normalized_from_the_sixth_batch_on, CASTOR_AUDIT_EVERY=4": _refused("a part has another maximum", _CANNOT, "CASTOR_AUDIT_EVERY=4"),
    },
    "writes.py": {
        "cached_by_workers": like(sgd, reason="rank 0 loads, and keeps files of, its part of the samples", differs="^files: missing .'cache/"),
    },
    "drawn.py": {
        "random_windows": like(adaptive, reason="every rank draws the same batches, and computes them whole", says="each of the . ranks computes the whole batch"),
    },
}
# Which a loader's parts cannot show by themselves.
LEFT_OUT = {("audited.py", "normalized_from_the_sixth_batch_on")}


def _titled(title):
    case, _, more = title.partition(", ")
    return f"{case}: {', '.join(filter(None, (more, OPTION)))}"


def split_by_loaders(table):
    """The table with these rows."""
    return {
        script: cases
        | {
            _titled(title): like(expect, options=(*expect.options, OPTION))
            for title, expect in (
                {case: expect for case, expect in cases.items() if script in SCRIPTS and case and ":" not in case and (script, case) not in LEFT_OUT}
                | OTHERS.get(script, {})
            ).items()
        }
        for script, cases in table.items()
    }
