# SPDX-License-Identifier: Apache-2.0
"""Prepared loaders: each process's batches, what a loop reports about them, and what is kept of the
user's loader. Other tests compare batches with the original (`test_loaders_of_two_processes.py`,
`test_sharding_oracle.py`); here the expected values are written out."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import warnings
from itertools import count, islice

import pytest
import torch
from accelerate import Accelerator, data_loader
from accelerate._loaders.tensor_bytes import dump, load
from accelerate.data_loader import (
    BatchSamplerShard,
    DataLoaderDispatcher,
    DataLoaderShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    prepare_data_loader,
    skip_first_batches,
)
from accelerate.errors import UsageError
from accelerate.state import GradientState
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

TEN = torch.arange(10)


class Stream(IterableDataset):
    def __init__(self, size=10):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))

    def __len__(self):
        return self.size


class WholeRows(torch.utils.data.Dataset):
    """A dataset that takes lists of indices."""

    def __len__(self):
        return 10

    def __getitem__(self, indices):
        return torch.tensor(indices)


def handed_out():
    facts = GradientState().step_state.batch()
    return facts and (facts.is_last, facts.num_samples, facts.num_real)


def told(loader):
    """The batches of a loop, and what was reported about each during the loop."""
    return [(batch.tolist(), *handed_out()) for batch in loader]


def of_rank_1(loader, **options):
    return prepare_data_loader(loader, num_processes=2, process_index=1, **options)


def worker_init(worker):
    torch.utils.data.get_worker_info().dataset.worker = worker


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_knows_the_last_batch_and_how_much_of_it_is_real(num_workers):
    loader = of_rank_1(DataLoader(torch.arange(11), 3, num_workers=num_workers))
    expected = [([3, 4, 5], False, 3, 3), ([9, 10, 0], True, 3, 2)]
    assert told(loader) == expected
    assert handed_out() is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_end_of_a_stream_is_known_too(num_workers):
    # Each worker reads the whole stream, so each has its own end.
    once = [([3, 4, 5], False, 3, 3), ([9, 10, 0], True, 3, 2)]
    twice = [([3, 4, 5], False, 3, 3)] * 2 + [([9, 10, 0], False, 3, 2), ([9, 10, 0], True, 3, 2)]
    loader = of_rank_1(DataLoader(Stream(11), 3, num_workers=num_workers))
    assert told(loader) == (twice if num_workers else once)
    assert loader.collate_fn is torch.utils.data.default_collate


def test_batches_of_varying_size_are_repeated_whole():
    loader = of_rank_1(DataLoader(TEN, batch_sampler=[[0, 1, 2], [3], [4, 5]]))
    assert told(loader) == [([3], False, 1, 1), ([0, 1, 2], True, 3, 0)]


def test_a_batch_sampler_passed_as_the_sampler_is_sharded():
    loader = DataLoader(WholeRows(), batch_size=None, sampler=BatchSampler(range(10), 3, False))
    assert told(of_rank_1(loader)) == [([3, 4, 5], False, 3, 3), ([9, 0, 1], True, 3, 1)]
    assert len(of_rank_1(loader)) == 2
    alone = prepare_data_loader(loader)
    assert [batch.tolist() for batch in alone] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_one_process_is_never_padded():
    user = DataLoader(TEN, 4)
    loader = prepare_data_loader(user)
    assert told(loader)[-1] == ([8, 9], True, 2, 2)
    assert loader.batch_sampler is user.batch_sampler


def test_a_loop_that_is_left_leaves_no_trace():
    loader = of_rank_1(DataLoader(TEN, 2))
    for _ in loader:
        assert GradientState().active_dataloader is loader
        break
    assert handed_out() is None
    assert not GradientState().in_dataloader
    assert loader.iteration == 0
    list(loader)
    assert loader.iteration == 1


def test_a_loop_that_ends_in_an_exception_leaves_no_trace():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 4:
                raise KeyError("four")
            return index

    with pytest.raises(KeyError) as caught:
        list(prepare_data_loader(DataLoader(Broken(), 2)))
    assert caught.value.args == ("four",)
    assert handed_out() is None
    assert not GradientState().in_dataloader


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_two_loops_over_one_loader_do_not_mix(workers):
    loader = of_rank_1(DataLoader(torch.arange(11), 3, **workers))
    expected = [([3, 4, 5], False, 3, 3), ([9, 10, 0], True, 3, 2)]
    outer = []
    for batch in loader:
        outer.append((batch.tolist(), *handed_out()))
        assert told(loader) == expected
    assert outer == expected


def test_persistent_workers_serve_every_epoch_and_start_anew_after_a_break():
    data = DataLoader(torch.arange(11), 3, num_workers=2, persistent_workers=True)
    loader = of_rank_1(data)
    expected = [([3, 4, 5], False, 3, 3), ([9, 10, 0], True, 3, 2)]
    assert told(loader) == expected
    workers = [worker.pid for worker in loader._iterator._workers]
    next(iter(loader))
    assert told(loader) == expected
    assert [worker.pid for worker in loader._iterator._workers] == workers


def test_workers_that_answer_out_of_order_do_not_mix_up_what_is_real():
    class OneIsSlow(torch.utils.data.Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, index):
            # The batch before the last, so that the last overtakes it.
            time.sleep(1 if index == 5 else 0)
            return index

    loader = of_rank_1(DataLoader(OneIsSlow(), 1, num_workers=2, in_order=False))
    # Sample 0 belongs to rank 0: here it is a repeat.
    num_real = {batch[0]: num_real for batch, _, _, num_real in told(loader)}
    assert num_real == {1: 1, 3: 1, 5: 1, 0: 0}


def test_endless_samplers_are_read_as_far_as_the_loop_goes():
    loader = of_rank_1(DataLoader(Naturals(), sampler=count(), batch_size=2))
    assert [batch.tolist() for batch in islice(loader, 3)] == [[2, 3], [6, 7], [10, 11]]


class Naturals(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


def test_a_prepared_loader_keeps_the_settings_of_the_users():
    generator = torch.Generator()
    kept = {
        "num_workers": 1,
        "collate_fn": list,
        "timeout": 30,
        "worker_init_fn": worker_init,
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
    }
    loader = of_rank_1(DataLoader(TEN, 2, multiprocessing_context="fork", pin_memory=True, **kept))
    assert isinstance(loader, DataLoader)
    assert type(loader) is DataLoaderShard
    assert {name: getattr(loader, name) for name in kept} == kept
    assert loader.pin_memory
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert isinstance(loader.batch_sampler, BatchSamplerShard)
    assert loader._is_accelerate_prepared
    assert prepare_data_loader(loader) is loader


def test_what_the_user_put_on_a_loader_stays_and_a_loop_of_its_own_is_warned_about():
    class Own(DataLoader):
        def __init__(self, *args, name):
            super().__init__(*args)
            self.name = name

        def __iter__(self):
            yield "unsharded"

    with pytest.warns(
        UserWarning,
        match=r"\[prepare_data_loader\] The prepared loader does not call Own.__iter__\(\)",
    ):
        loader = of_rank_1(Own(TEN, 4, name="train"))
    assert loader.name == "train"
    assert [batch.tolist() for batch in loader] == [[4, 5, 6, 7], [2, 3, 4, 5]]


def test_sizes_are_of_all_processes():
    whole = of_rank_1(DataLoader(TEN, 4))
    assert (len(whole), whole.total_batch_size, whole.total_dataset_length) == (2, 8, 10)
    split = of_rank_1(DataLoader(TEN, 4), split_batches=True)
    assert (len(split), split.total_batch_size, split.total_dataset_length) == (3, 4, 10)
    stream = of_rank_1(DataLoader(Stream(), 4))
    assert (len(stream), stream.total_batch_size, stream.total_dataset_length) == (2, 8, 10)


def test_remainder_and_end_are_known_in_the_loop():
    loader = of_rank_1(DataLoader(TEN, 3))
    said = [(loader.end_of_dataloader, GradientState().remainder) for _ in loader]
    assert said == [(False, -1), (True, 4)]
    dropped = of_rank_1(DataLoader(TEN, 3, drop_last=True))
    assert [GradientState().remainder for _ in dropped] == [6]
    # Batches of 1, 2, 3 and 4 samples: the last two are the second round.
    varying = of_rank_1(DataLoader(TEN, batch_sampler=[[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]))
    assert [GradientState().remainder for _ in varying] == [-1, 7]


def test_a_loader_can_be_pickled_and_copied():
    loader = of_rank_1(DataLoader(TEN, 4, shuffle=True, generator=torch.Generator()))
    other = pickle.loads(pickle.dumps(loader))
    third = copy.deepcopy(loader)
    expected = [batch.tolist() for batch in loader]
    assert [batch.tolist() for batch in other] == expected
    assert [batch.tolist() for batch in third] == expected


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_loader_can_be_copied_while_a_loop_runs(copied, num_workers):
    for dispatch in (False, True):
        loader = prepare_data_loader(
            DataLoader(TEN, 2, num_workers=num_workers, persistent_workers=num_workers > 0),
            put_on_device=True,
            dispatch_batches=dispatch,
        )
        list(loader)
        batches = iter(loader)
        next(batches)
        again = copied(loader)
        assert [batch.tolist() for batch in again] == TEN.view(5, 2).tolist()
        assert [batch.tolist() for batch in batches] == TEN.view(5, 2)[1:].tolist()


def test_a_seedable_sampler_repeats_by_seed_and_epoch():
    def torchs(epoch):
        return torch.randperm(10, generator=torch.Generator().manual_seed(5 + epoch)).tolist()

    sampler = SeedableRandomSampler(TEN, data_seed=5)
    assert [list(sampler), list(sampler)] == [torchs(0), torchs(1)]
    sampler.set_epoch(0)
    assert list(sampler) == torchs(0)
    drawn = SeedableRandomSampler(TEN, replacement=True, num_samples=7, data_seed=5)
    own = RandomSampler(TEN, True, 7, torch.Generator().manual_seed(5))
    assert list(drawn) == list(own)


def test_use_seedable_sampler_shuffles_alike_on_every_rank_and_anew_in_every_epoch():
    def orders(rank):
        loader = prepare_data_loader(
            DataLoader(TEN, 5, shuffle=True),
            num_processes=2,
            process_index=rank,
            use_seedable_sampler=True,
            data_seed=5,
        )
        assert isinstance(loader.get_sampler(), SeedableRandomSampler)
        return [[i for batch in loader for i in batch.tolist()] for _ in range(2)]

    expected = [
        torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist()
        for seed in (5, 6)
    ]
    assert [a + b for a, b in zip(orders(0), orders(1), strict=True)] == expected


def test_the_epoch_reaches_every_sampler_and_the_dataset():
    class Told(BatchSampler):
        def set_epoch(self, epoch):
            epochs.append(("batch sampler", epoch))

    class ToldSampler(list):
        def set_epoch(self, epoch):
            epochs.append(("sampler", epoch))

    class ToldData(torch.utils.data.Dataset):
        __getitem__ = TEN.__getitem__

        def set_epoch(self, epoch):
            epochs.append(("data", epoch))

    data = DataLoader(ToldData(), batch_sampler=Told(ToldSampler(range(10)), 4, False))
    for loader in (of_rank_1(data), prepare_data_loader(data), skip_first_batches(of_rank_1(data))):
        epochs = []
        loader.set_epoch(3)
        list(loader)
        expected = [("batch sampler", 3), ("sampler", 3), ("data", 3)]
        assert epochs == expected * 2
        assert loader.iteration == 4


def test_skipping_resumes_in_the_middle_of_an_epoch():
    loader = of_rank_1(DataLoader(torch.arange(11), 3))
    rest = skip_first_batches(loader, 1)
    assert isinstance(rest.batch_sampler, SkipBatchSampler)
    assert (len(rest), rest.total_batch_size, rest.batch_sampler.total_length) == (1, 6, 2)
    assert told(rest) == [([9, 10, 0], True, 3, 2)]
    stream = skip_first_batches(of_rank_1(DataLoader(Stream(11), 3)), 1)
    assert len(stream) == 1
    assert told(stream) == [([9, 10, 0], True, 3, 2)]


def seedable(num_workers=0, data_seed=5):
    return of_rank_1(
        DataLoader(torch.arange(14), 2, shuffle=True, num_workers=num_workers),
        use_seedable_sampler=True,
        data_seed=data_seed,
    )


def dispatched(dataset):
    return prepare_data_loader(
        DataLoader(dataset, 3), torch.device("cpu"), put_on_device=True, dispatch_batches=True
    )


@pytest.mark.parametrize(
    "make",
    [
        seedable,
        lambda: seedable(num_workers=2),
        lambda: of_rank_1(DataLoader(Stream(11), 2)),
        lambda: dispatched(Stream(11)),
        lambda: dispatched(torch.arange(11)),
    ],
    ids=["map", "map, workers", "stream", "dispatched stream", "dispatched map"],
)
def test_a_restored_loader_resumes_at_the_saved_position(make):
    whole = make()
    epochs = [told(whole) for _ in range(3)]
    for stop in range(1, len(epochs[1]) + 1):
        loader = make()
        assert told(loader) == epochs[0]
        begun = list(islice(loader, stop))
        assert [batch.tolist() for batch in begun] == [batch for batch, *_ in epochs[1][:stop]]
        position = loader._position()
        other = make()
        other._restore_position(position)
        assert other._position() == position
        if stop == len(epochs[1]):
            # It is completed: the next epoch comes next.
            assert (position["epoch"], position["num_batches"]) == (2, 0)
            assert told(other) == epochs[2]
            continue
        assert (position["epoch"], position["num_batches"]) == (1, stop)
        assert told(other) == epochs[1][stop:]
        # Once.
        assert other._position() == {**position, "epoch": 2, "num_batches": 0}
        assert told(other) == epochs[2]


def test_a_position_brings_the_seed_along_and_is_of_ints():
    loader, other = seedable(data_seed=5), seedable(data_seed=77)
    batches = iter(loader)
    next(batches)
    assert loader._position() == {"epoch": 0, "num_batches": 1, "seed": 5}
    other._restore_position(loader._position())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
    assert loader._position() == {"epoch": 1, "num_batches": 0, "seed": 5}
    plain = of_rank_1(DataLoader(TEN, 2))
    assert plain._position() == {"epoch": 0, "num_batches": 0}
    expected = r"^\[DataLoader\] The position was saved with a seedable sampler, but "
    with pytest.raises(ValueError, match=expected):
        plain._restore_position(loader._position())


def test_batches_that_were_returned_before_are_not_read_again():
    read = []

    class Watched(torch.utils.data.Dataset):
        __len__ = TEN.__len__

        def __getitem__(self, index):
            read.append(index)
            return index

    loader = prepare_data_loader(DataLoader(Watched(), 2))
    loader._restore_position({"epoch": 4, "num_batches": 3})
    assert [batch.tolist() for batch in loader] == [[6, 7], [8, 9]]
    assert read == [6, 7, 8, 9]
    assert loader.iteration == 5


def test_another_epoch_begins_at_its_beginning_whatever_was_restored():
    loader = prepare_data_loader(DataLoader(TEN, 5))
    loader._restore_position({"epoch": 2, "num_batches": 1})
    loader.set_epoch(3)
    assert loader._position() == {"epoch": 3, "num_batches": 0}
    assert len(list(loader)) == 2


def test_the_rest_of_an_epoch_that_is_skipped_to_counts_for_the_loader():
    for data in (TEN, Stream()):
        loader = prepare_data_loader(DataLoader(data, 2))
        # Batches that a script skips itself are not skipped twice.
        loader._restore_position({"epoch": 0, "num_batches": 3})
        rest = iter(skip_first_batches(loader, 3))
        assert next(rest).tolist() == [6, 7]
        assert loader._position() == {"epoch": 0, "num_batches": 4}
        assert [batch.tolist() for batch in rest] == [[8, 9]]
        assert len(list(loader)) == 5


def test_a_sampler_is_set_below_other_wrappers():
    for loader in (
        prepare_data_loader(DataLoader(TEN, 2)),
        of_rank_1(DataLoader(TEN, 2)),
        skip_first_batches(of_rank_1(DataLoader(TEN, 2)), 0),
    ):
        loader.set_sampler([7, 7, 7, 7])
        assert loader.get_sampler() == [7, 7, 7, 7]
        assert {i for batch in loader for i in batch.tolist()} == {7}


def test_skipping_reads_no_samples_and_works_on_plain_loaders():
    read = []

    class Watched(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            read.append(index)
            return index

    rest = skip_first_batches(DataLoader(Watched(), 2), 2)
    assert [batch.tolist() for batch in rest] == [[4, 5]]
    assert read == [4, 5]
    stream = skip_first_batches(DataLoader(Stream(), 4), 2)
    assert isinstance(stream, data_loader.SkipDataLoader)
    assert len(stream) == 1
    assert [batch.tolist() for batch in stream] == [[8, 9]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (2, DataLoader(TEN, 2)),
            r"The dataloader is 2 \(a number\). Call skip_first_batches\(dataloader,",
        ),
        ((DataLoader(TEN, 2), -1), "num_batches is -1 .* at least 0"),
        ((DataLoader(TEN, 2), "3"), 'num_batches is "3" .* at least 0'),
        ((DataLoader(TEN, 2), 1.5), "num_batches is 1.5 .* at least 0"),
    ],
)
def test_arguments_that_say_no_number_of_batches_are_refused(arguments, sentence):
    with pytest.raises(UsageError, match=rf"^\[skip_first_batches\] {sentence}[^\n]*$"):
        skip_first_batches(*arguments)


def test_a_stream_without_a_length_resumes_from_its_state():
    loader = of_rank_1(DataLoader(Stream(17), 3))
    batches = iter(loader)
    next(batches)
    again = of_rank_1(DataLoader(Stream(17), 3))
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


def test_a_state_of_another_loader_is_refused():
    loader = prepare_data_loader(DataLoader(TEN, 2))
    for state in ({}, {"_num_yielded": 2, "_iterator_finished": False}):  # torchdata's
        with pytest.raises(
            ValueError, match=r"^\[load_state_dict\] The state has the keys .* torchdata"
        ):
            loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [0, 1]


@pytest.mark.parametrize("num_batches", [4, 4.0, torch.tensor(4)])
def test_a_whole_number_of_any_type_is_skipped(num_batches):
    rest = skip_first_batches(DataLoader(TEN, 2), num_batches)
    assert [batch.tolist() for batch in rest] == [[8, 9]]


def test_a_dispatched_loader_of_one_process_is_the_users():
    loader = prepare_data_loader(DataLoader(Stream(), 4), torch.device("cpu"), put_on_device=True)
    assert type(loader) is DataLoaderDispatcher
    assert isinstance(loader, DataLoader)
    expected = [([0, 1, 2, 3], False, 4, 4), ([4, 5, 6, 7], False, 4, 4), ([8, 9], True, 2, 2)]
    assert told(loader) == expected
    assert (len(loader), loader.remainder, loader.end_of_dataloader) == (3, 2, True)
    assert told(skip_first_batches(loader, 2)) == expected[2:]
    assert list(prepare_data_loader(DataLoader(Stream(0), 4), put_on_device=True)) == []


def test_one_process_takes_whatever_batches_a_stream_has():
    for batch in (
        {"x": torch.ones(2), "s": ["a", "b"]},
        {"x": torch.ones(2), "s": None},
        {"x": torch.ones(4), "w": torch.ones(2)},
        ["no tensor"],
    ):
        stream = DataLoader(Stream(2), 2, collate_fn=lambda _, batch=batch: batch)
        loader = prepare_data_loader(stream, torch.device("cpu"), put_on_device=True)
        (only,) = loader
        assert only == batch or only.keys() == batch.keys()


def test_batches_of_varying_size_are_dealt_out_whole_without_padding():
    class Varying:
        batch_size = 3

        def __iter__(self):
            return iter([[0, 1, 2], [3], [4, 5, 6], [7, 8], [9]])

    shards = [BatchSamplerShard(Varying(), 2, rank, even_batches=False) for rank in range(2)]
    assert [list(shard) for shard in shards] == [[[0, 1, 2], [4, 5, 6], [9]], [[3], [7, 8]]]


def test_batches_travel_as_bytes():
    values = {
        "bf16": torch.randn(3, 4).bfloat16(),
        "scalar": torch.tensor(2.5),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(2, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 7, dtype=torch.int8),
        "strided": torch.arange(12).reshape(3, 4).t()[1:],
        "with gradient": torch.ones(2, requires_grad=True),
        "float8": torch.ones(2).to(torch.float8_e4m3fn),
    }
    back = load(dump((values, "text", 3)))
    assert back[1:] == ("text", 3)
    for name, value in values.items():
        other = back[0][name]
        assert (other.dtype, other.shape, other.requires_grad) == (value.dtype, value.shape, False)
        assert torch.equal(other.to(torch.complex64), value.to(torch.complex64))
    back[0]["bool"][0] = False  # memory of its own, that can be written to


@pytest.mark.parametrize(
    ("loader", "options", "sentence"),
    [
        (
            DataLoader(TEN, None),
            {},
            "A loader with batch_size=None cannot be distributed across 2 processes",
        ),
        (
            DataLoader(Stream(), None),
            {},
            "IterableDataset with batch_size=None cannot be distributed across 2 processes",
        ),
        (DataLoader(TEN, 3), {"split_batches": True}, "the batch size 3 must be a multiple of 2"),
        (
            DataLoader(Stream(), 3),
            {"split_batches": True},
            "the batch size 3 must be a multiple of 2",
        ),
        (DataLoader(TEN, batch_sampler=[[1]]), {"split_batches": True}, "has no batch_size"),
        (DataLoader(TEN, 2), {"dispatch_batches": True}, "put_on_device=False"),
        (DataLoader(TEN, 2), {"torch_device_mesh": object()}, "torch_device_mesh is not supported"),
    ],
)
def test_loaders_that_are_not_supported_raise_one_sentence(loader, options, sentence):
    with pytest.raises(ValueError, match=rf"^\[\w+\] .*{sentence}[^\n]*$"):
        of_rank_1(loader, **options)


def test_a_batch_sampler_whose_batches_are_not_of_its_size_is_refused():
    class Own(BatchSampler):
        def __iter__(self):
            return iter([[0, 1], [2], [3, 4]])

    with pytest.raises(ValueError, match="Batch 1 of Own has 1 samples, but its batch_size is 2"):
        list(of_rank_1(DataLoader(TEN, batch_sampler=Own(range(5), 2, False))))


def test_a_prepared_loader_is_freed_with_its_last_reference():
    class Data(torch.utils.data.Dataset):
        __getitem__ = TEN.__getitem__

        def __len__(self):
            return 10

        def __del__(self):
            freed.append(True)

    freed = []
    loader = of_rank_1(DataLoader(Data(), 2))
    list(loader)
    next(iter(loader))
    del loader
    gc.collect()
    assert freed == [True]


def test_preparing_a_plain_loader_warns_about_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_rank_1(DataLoader(TEN, 2))


def test_a_loop_inside_of_another_over_the_same_loader_leaves_its_end_alone():
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(torch.utils.data.DataLoader(range(8), batch_size=2))
    told = []
    for _ in loader:
        before = accelerator.gradient_state.end_of_dataloader
        for _ in loader:
            pass
        told.append((before, accelerator.gradient_state.end_of_dataloader))
    assert told == [(False, False)] * 3 + [(True, True)]
