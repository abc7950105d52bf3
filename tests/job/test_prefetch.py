"""Prompts made on a thread: bounded, in order, errors handed on, and it can be stopped."""

from __future__ import annotations

import threading
import time

import pytest

from offgen.job.prefetch import Prefetch


def drain(prompts):
    taken = []
    while not prompts.is_exhausted:
        taken += prompts.take(7, wait=True)
    return taken


def test_everything_arrives_in_order():
    prompts = Prefetch(iter(range(1000)), capacity=16)
    assert drain(prompts) == list(range(1000))
    assert prompts.num_prompts == 1000
    prompts.close()


def test_it_reads_no_further_ahead_than_its_capacity():
    made = []
    prompts = Prefetch((made.append(i) or i for i in range(1000)), capacity=10)
    time.sleep(0.3)
    assert len(made) <= 11
    assert drain(prompts) == list(range(1000))


def test_what_the_thread_raised_is_raised_after_what_it_made():
    def broken():
        yield 1
        raise OSError("the disk is gone")

    prompts = Prefetch(broken())
    assert prompts.take(1, wait=True) == [1]
    with pytest.raises(OSError, match="the disk is gone"):
        prompts.take(1, wait=True)
    assert not prompts.is_exhausted


def test_a_waiting_take_sees_stop():
    never = threading.Event()

    def slow():
        never.wait(5)
        yield 1

    prompts = Prefetch(slow())
    threading.Timer(0.2, prompts.stop).start()
    started_s = time.monotonic()
    assert prompts.take(1, wait=True) == []
    assert time.monotonic() - started_s < 2
    never.set()
    prompts.close()


def test_take_without_wait_never_blocks():
    prompts = Prefetch(iter([]))
    assert prompts.take(5, wait=False) == []
    assert list(prompts) == []
    assert prompts.is_exhausted


def test_the_source_is_closed():
    closed = threading.Event()

    def source():
        try:
            yield from range(100_000)
        finally:
            closed.set()

    prompts = Prefetch(source(), capacity=4)
    prompts.take(1, wait=True)
    prompts.close()
    assert closed.is_set()
