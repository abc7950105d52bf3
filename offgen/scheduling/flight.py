"""A batch on its way: planned, its ids not known yet. Knows who is in it and how ids end a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import call

from offgen.scheduling.batch import Batch
from offgen.scheduling.decode_set import DecodeLists
from offgen.scheduling.request import Ending, Request

BY_MAX_TOKENS = Ending("length", "max_tokens")
BY_CONTEXT = Ending("length", "context")


@dataclass(slots=True)
class Flight:
    """`sampling` are the rows whose chunk samples, `ending` all rows that get their last token by count."""

    batch: Batch
    sampling: list[Request]
    decodes: DecodeLists
    ending: list[Request]

    @property
    def samples(self) -> bool:
        return bool(self.sampling or self.decodes.requests)

    @property
    def num_awaited(self) -> int:
        """Ids that are some row's."""
        return len(self.sampling) + len(self.decodes.requests) - self.decodes.num_ignored

    def ignore(self, request: Request) -> None:
        """The row has ended: should the batch make another token for it, that is nobody's."""
        if request in self.decodes.requests:
            self.decodes.ignore(self.decodes.requests.index(request))

    def awaits(self, request: Request) -> bool:
        """Will this batch bring an id for the request."""
        return request in self.sampling or request in self.decodes.requests

    def take_ids(
        self, token_ids: Sequence[int], endings: Mapping[int, Ending], unfinished: Mapping[int, Request]
    ) -> list[tuple[Request, Ending]]:
        """Append each row's id; returns the rows that end with it, and why. Ids of rows that had ended are ignored.

        `endings` were decided outside, by request id, for rows among the `unfinished`.
        """
        sampling, decodes = self.sampling, self.decodes
        ids = token_ids
        if sampling:
            ids = token_ids[len(sampling) :]
            for request, token_id in zip(sampling, token_ids, strict=False):
                if not request.is_finished:
                    request.output_ids.append(token_id)
        assert len(ids) == len(decodes.takers), "one id for each row that samples"
        deque(map(call, decodes.takers, ids), maxlen=0)  # takers[i](ids[i]) for all i, without a Python loop
        has_stops = bool(decodes.stop_ids) and not decodes.stop_ids.isdisjoint(ids)
        if not (sampling or endings or has_stops or self.ending):
            return []
        return self._ended(token_ids, endings, unfinished, has_stops=has_stops)

    def _ended(
        self,
        token_ids: Sequence[int],
        endings: Mapping[int, Ending],
        unfinished: Mapping[int, Request],
        *,
        has_stops: bool,
    ) -> list[tuple[Request, Ending]]:
        ended: dict[int, tuple[Request, Ending]] = {}  # by arrival; the first reason counts
        sampling = [*self.sampling, *self.decodes.requests] if has_stops else self.sampling
        for request_id, told in endings.items():
            request = unfinished.get(request_id)
            if request is not None:
                ended[request.arrival] = (request, told)
        for request, token_id in zip(sampling, token_ids, strict=False):
            if token_id in request.stop_ids and not request.is_finished:
                stop = _stop(request, token_id)
                if stop is not None:
                    ended.setdefault(request.arrival, (request, stop))
        for request in self.ending:
            if not request.is_finished:
                whole = request.num_prompt_tokens + request.max_tokens <= request.max_length
                ended.setdefault(request.arrival, (request, BY_MAX_TOKENS if whole else BY_CONTEXT))
        return list(ended.values())


def _stop(request: Request, token_id: int) -> Ending | None:
    """The ending by a stop id just taken, unless it came too early."""
    if len(request.output_ids) < request.min_tokens:
        return None
    return Ending("stop", None if token_id in request.eos_ids else str(token_id))
