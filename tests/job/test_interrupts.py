"""Signals while nothing, something that may be broken off, and something that must be asked is under way."""

from __future__ import annotations

import os
import signal

import pytest

from offgen.job.interrupts import Interrupts, Stopped


def test_a_signal_breaks_off_what_may_be_broken_off():
    with Interrupts() as interrupts, pytest.raises(Stopped) as stopped, interrupts.raising():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")
    assert stopped.value.exit_code == 143


def test_a_signal_asks_what_must_be_asked():
    asked = []
    with Interrupts() as interrupts:
        with interrupts.calling(lambda: asked.append(True)):
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked == [True]
        with pytest.raises(Stopped):
            interrupts.check()


def test_a_signal_in_between_is_remembered():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped), interrupts.raising():
            raise AssertionError("not reached")


def test_the_same_request_sent_twice_is_one_request():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.signum == signal.SIGTERM


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.signum is None
    finally:
        signal.signal(signal.SIGHUP, before)
