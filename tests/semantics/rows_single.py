"""The rows of scripts of one process, which Castor starts `--nproc` times."""

from dataclasses import replace

from declared import cases_in
from expect import ADAPTIVE, SGD, accumulated, adaptive, agreement, half, like, resumed, sgd

WHOLE = "computed whole on every rank"  # says a line
CANCELS = replace(SGD, name="sgd, gradients that cancel", noise=1e-6)
# So often that sweeps come between any two lines of a script.
LAZY = {"options": ("CASTOR_LAZY_INIT=1", "CASTOR_LAZY_BYTES=64K", "CASTOR_LOG_LEVEL=debug"), "says": "were the same again"}

TABLE = {
    "construct.py": {
        "sgd": like(sgd, **LAZY),
        "adam": like(adaptive, **LAZY),
        "copied_and_edited": like(sgd, **LAZY),
        "frozen_teacher": like(sgd, **LAZY),
    },
    "gpt.py": {"": adaptive},
    "accumulate.py": {
        "sgd": accumulated,
        "adamw_clipped": like(accumulated, tolerance=ADAPTIVE),
        "workers": accumulated,
        "workers_that_stay": accumulated,
    },
    "loops.py": {
        "sgd": sgd,
        "sgd_momentum": sgd,
        "adam": adaptive,
        "adamw_fused": adaptive,
        "double_precision": sgd,
        "complex_weights": sgd,
        "recomputed_twice": like(sgd, reason="a gradient is summed once", refused="two gradients in one backward .*: use .*use_reentrant=False"),
        "sparse_gradients": like(sgd, reason="sparse gradients have no fixed place", refused="is sparse: make it dense .*, or run this script on one rank"),
        "clipped_by_norm": sgd,
        "clipped_by_value": sgd,
        "clipped_by_the_loss": sgd,
        "clipped_by_the_batch": sgd,
        "accumulation": sgd,
        "scaler": sgd,
        "several_losses": sgd,
        "plateau_and_early_stop": sgd,
        "two_networks": sgd,
        "ema": sgd,
        "frozen_then_thawed": sgd,
        "closure": sgd,
        "listed_twice": adaptive,
        **{
            name: like(sgd, reason="parts of a batch give no whole gradient there", refused="inside a backward")
            for name in ("inside_backward", "inside_backward_by_earlier_hooks")
        },
        "stepped_through_the_step": like(sgd, reason="its parameters are parts of a graph", refused="it is computed from other tensors"),
        "local_gradients_only": like(sgd, aside="there is no optimizer, and no backward()"),
        "sum_of_losses": sgd,
        "dropout": sgd,
        "batch_norm": sgd,
        "models_one_after_another": sgd,
    },
    "lazies.py": {
        name: sgd
        for name in (
            "shapes_by_the_first_batch shapes_by_a_first_run shapes_by_a_file convolutions one_layer_is_never_reached "
            "a_layer_comes_to_its_group_later from_the_meta_device"
        ).split()
    },
    "storages.py": {
        name: adaptive
        for name in (
            "half_and_back other_strides parts_of_one_tensor loaded_tensors memory_of_numpy made_from_numpy part_beside_the_whole "
            "kept_states states_set_to_zero states_outlive_their_model other_type swapped_on_conversion exception_in_backward"
        ).split()
    }
    | {
        "other_type_under_the_optimizer": like(sgd, reason="the sums have the type that the parameters had", refused="has become torch"),
        "exception_on_rank_1": like(sgd, reason="its gradients are lost", refused="raised an exception on some of the ranks"),
    },
    "tokens.py": {
        name: sgd
        for name in (
            "ignored ignored_accumulated ignored_with_penalty ignored_in_a_whole_part ignored_index_of_its_own "
            "ignored_in_double_precision classes_weighed labels_smoothed labels_smoothed_and_classes_weighed "
            "classes_in_the_second_dimension log_probabilities sum_divided_by_its_count masked_sum loss_for_each_sample one_sample_left "
            "sums_divided_by_what_two_batches_count sums_accumulated elements_selected padded_to_the_longest two_heads another_mean_beside "
            "not_counted contrastive"
        ).split()
    },
    "batch_norm.py": {
        name: sgd
        for name in (
            "convolution_sgd one_dimension three_dimensions vectors tails tail_of_one in_double_precision without_weights "
            "without_running_statistics cumulative_average evaluated frozen accumulated parts_without_labels recomputed "
            "recomputed_reentrantly without_gradients channels_last as_a_function one_batch_on_every_rank "
            "statistics_of_an_average other_norms instance_norm instance_norm_with_running_statistics"
        ).split()
    }
    | {
        "convolution_adamw": adaptive,
        "compiled": like(sgd, seconds=60),
        "sum_of_losses": sgd,
        "bfloat16_model": half,
        "autocast": half,
        **{name: like(sgd, reason="compiled code does not come through Python", says=WHOLE) for name in ("scripted", "scripted_after_others")},
    },
    "batches.py": {
        name: sgd
        for name in (
            "in_order shuffled shuffled_with_a_generator tail_dropped tail_of_odd_length tail_of_one odd_batches "
            "batches_of_one batches_of_three forked_workers persistent_workers spawned_workers iterable_dataset "
            "with_replacement restarted_iterator own_sampler batch_sampler dictionaries loader_without_batching "
            "split_and_subset two_loaders_together evaluation evaluation_in_inference_mode "
            "evaluation_during_the_epoch length_of_a_loader tail_drawn_ahead two_loaders_of_odd_sizes"
        ).split()
    }
    | {
        f"{name}: CASTOR_BATCH=scale": like(
            sgd,
            options=("CASTOR_BATCH=scale",),
            reason="each rank draws its own batches, and a step sees N of them",
            says="each of the . ranks draws its own batches",
            differs="event|printed",
        )
        for name in ("shuffled", "shuffled_with_a_generator", "forked_workers")
    }
    | {
        "in_order: CASTOR_BATCH=scale": like(
            sgd, options=("CASTOR_BATCH=scale",), reason="every rank has the same batches", says="every rank computes the same"
        ),
    },
    "chance.py": {
        name: sgd
        for name in (
            "dropout dropout_in_tails dropout_and_accumulation dropout_in_place dropout_in_double_precision "
            "dropout_of_flattened dropout_of_features dropout_of_attention dropout_of_one_sample_for_each_rank dropout_in_recurrent_layers dropout_recomputed "
            "dropout_in_scripted_code dropout_and_evaluation autoencoder adversarial_of_a_constant noise_on_inputs time_of_each_sample "
            "sampled_classes paths_dropped generator_of_its_own coin_of_each_step noise_on_weights seeded_in_every_step augmented "
            "augmented_by_workers augmented_by_spawned_workers augmented_by_workers_that_stay masked_in_collation streamed "
            "dropout_on_what_is_padded dropout_on_what_is_padded_later "
            "epochs_begun_in_evaluation_mode constants_as_long_as_a_part"
        ).split()
    }
    | {
        name: adaptive
        for name in "dropout_with_adam adversarial adversarial_with_numpy adversarial_from_a_buffer".split()
    }
    | {
        "counts_that_depend_on_values": like(agreement, reason="each rank draws numbers of its own"),
        "list_of_each_part": sgd,
    },
    "samplers.py": {
        name: sgd
        for name in (
            "weighted_without_replacement subset class_that_draws_with_torch class_that_draws_with_random "
            "class_with_a_generator_of_numpy class_that_knows_the_epoch class_that_draws_as_it_goes batches_of_a_sampler "
            "batches_of_indices prefetch_of_four persistent_and_left_in_mid_epoch spawned_and_persistent sampler_with_workers "
            "one_loader_for_both one_stream_for_both evaluated_without_no_grad stream_of_spawned_workers "
            "stream_of_persistent_workers stream_without_tail stream_of_batches stream_shuffled_in_a_buffer"
        ).split()
    }
    | {
        name: adaptive
        for name in (
            "weighted random_with_replacement class_that_draws_with_numpy class_of_batches left_in_mid_epoch "
            "stream_of_workers stream_with_a_tail_of_one"
        ).split()
    },
    "shapes.py": {
        name: sgd
        for name in (
            "tuples named_tuples nested single_tensors arrays_of_numpy strings_and_numbers whole_batches_with_words "
            "collated_into_an_object padded packed_end_to_end count_beside spawned_collation collated_by_workers_that_stay"
        ).split()
    }
    | {
        name: adaptive
        for name in (
            "lists dictionaries collated_words ragged"
        ).split()
    },
    "in_batch_losses.py": {
        name: sgd
        for name in (
            "logsumexp softmax_by_hand simclr siglip products_by_einsum matrix_of_cosines negatives_from_elsewhere_too supervised_contrast "
            "divided_by_the_largest mean_that_miscounts penalty_of_the_batch_mean ranked_among_negatives each_for_itself"
        ).split()
    }
    # The gradient of their last bias is rounding noise.
    | {name: like(sgd, tolerance=CANCELS) for name in "barlow_twins vicreg hardest_triplets negatives_drawn_from_the_batch".split()},
    "audited.py": {
        name: sgd
        for name in (
            "batch_drawn_ahead looked_at_first two_networks_two_loaders appends_as_it_steps drawn_on_a_thread another_loss_later "
            "normalized_from_the_sixth_batch_on"
        ).split()
    },
    "survivors.py": {case: sgd for case in cases_in("survivors.py") if case}
    | {case: adaptive for case in ("codebook", "beta_by_a_controller", "trust_in_a_frozen_teacher")}
    | {
        case: like(sgd, reason="rows meet inside of the model", says=WHOLE)
        for case in "codebook_in_forward attention_over_the_batch scales_set_in_the_first_forward calls_counted_in_a_variable".split()
    },
    "kept.py": {case: like(sgd, says=WHOLE) for case in cases_in("kept.py") if case}
    | {
        case: sgd
        for case in (
            "graph_in_an_attribute results_changed_in_place loss_of_rows_that_one_rank_lacks loss_divided_by_the_whole_batch "
            "results_as_long_as_a_batch_by_chance arguments_as_long_as_a_batch_by_chance"
        ).split()
    }
    | {
        "penalty_through_a_batch_norm": like(sgd, tolerance=CANCELS),
        **{
            case: like(sgd, reason="it may be made of the rows of a part, and calls before were divided", refused=r"cannot be computed by rows: Network (changes seen|returns a whole)")
            for case in ("hidden_states_that_are_kept_late", "count_that_begins_late")
        },
        "exception_of_some_rows": like(sgd, reason="the other ranks have gone on", refused="on some of the ranks only"),
    },
    "taken.py": {case: sgd for case in cases_in("taken.py") if case},
    "without_optimizer.py": {
        name: like(sgd, aside="no optimizer has the parameters")
        for name in "data_added_to under_no_grad class_of_its_own tensors_alone".split()
    }
    | {"gradient_of_the_input": sgd, "some_in_an_optimizer": adaptive},
    "drawn.py": {
        "random_windows": like(adaptive, says_not="computes the whole batch"),
        "random_windows: CASTOR_BATCH=scale": like(
            agreement,
            reason="each rank draws its own batches",
            options=("CASTOR_BATCH=scale",),
            says="each of the . ranks draws its own batches by hand",
        ),
        "slices_in_order: CASTOR_BATCH=scale": like(
            sgd, reason="every rank holds the same batch", options=("CASTOR_BATCH=scale",), says="every rank computes the same"
        ),
        "the_same_batch_each_time": sgd,
        "slices_in_order": sgd,
    },
    "files.py": {
        "checkpoints": adaptive,
        "best_of_all": sgd,
        "saved_on_threads": sgd,
        "checkpoints_renamed_and_removed": sgd,
        "best_is_a_copy": sgd,
        "log_as_text": sgd,
        "table_appended_to": sgd,
        "safetensors": sgd,
        "tensorboard": sgd,
        "arrays": like(sgd, ignored=("head.npy",)),
        "resumed": like(adaptive, stages=resumed("castor", "castor")),
        "resumed: plain, then Castor": like(adaptive, stages=resumed("plain", "castor")),
        "resumed: Castor, then plain": like(adaptive, stages=resumed("castor", "plain")),
    },
    "writes.py": {
        name: sgd
        for name in (
            "metrics_as_json cached_by_workers rows_once checkpoints_rotated folders_that_must_be_new replaced_whole logged by_children "
            "temporary working_directory named_by_itself"
        ).split()
    }
    | {
        "by_hand": like(sgd, ignored=("head.npy",)),
        "mapped": like(sgd, ignored=("mapped.raw",)),
        "locked": like(sgd, ignored=("base.db",)),
        "checkpoint_in_parts": like(sgd, ignored=("__0_0.distcp", ".metadata")),
        "pictures": like(sgd, ignored=("grid.png",)),
    },
    "process_groups.py": {
        "group_of_one": like(
            sgd, reason="ranks of its own have batches of their own", refused="without --nproc: castor run .* -- torchrun", seconds=60
        ),
        "spawned": like(sgd, reason="ranks of its own have batches of their own", refused="without --nproc: castor run", seconds=60),
        "hogwild_forked": like(sgd, reason="each process trains by itself", refused="starts processes that train, .* without --nproc: castor run .* -- python .*groups.py$"),
        "hogwild_spawned": like(
            sgd, reason="each process trains by itself", refused="starts processes that train, .* without --nproc: castor run .* -- python .*groups.py$", seconds=60
        ),
    },
    "slow_loader.py": {"": like(sgd, says="went into waiting for a DataLoader")},
    "unseeded.py": {"": like(agreement, reason="no two runs are alike, but the ranks must be", repeatable=False)},
    "trainer.py": {"": like(adaptive, ignored=("training_args.bin",), seconds=60)},
    "accelerator.py": {"": adaptive},
}
