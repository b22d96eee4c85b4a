"""The steps of an epoch, each made when it is asked for.

An epoch's examples are made at once, since one stream of random numbers draws them all: 0.4 KB a document, beside the
1.3 KB that its labels take anyway. Its lessons are not: 5.3 KB and up to 10 ms a document (measured on OA-Mine's
titles, 73 rows each), so that a million distilled titles would take 5 GB, texts of 500 tokens seven times that, and
hours would go by before the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from hpd_core.examples import Example, Labelled, Sampling, epoch_examples
from hpd_core.prompt import PromptEncoder, PromptError
from jobs.console import say

if TYPE_CHECKING:
    from hpd_core.finetune import Step
    from hpd_core.lessons import Lesson, LessonMaker


@dataclass(slots=True)
class Lessons:
    """Steps of an epoch by its number. A document or value that cannot be put into ids is left out, out loud."""

    encoder: PromptEncoder
    labelled: Sequence[Labelled]
    sampling: Sampling
    autoregressive: bool

    def __call__(self, epoch: int) -> Epoch:
        from hpd_core.lessons import LessonMaker

        maker = LessonMaker(self.encoder, autoregressive=self.autoregressive)
        batches = epoch_examples(self.labelled, self.sampling, epoch)
        size = self.sampling.accumulate
        return Epoch([batches[start : start + size] for start in range(0, len(batches), size)], maker)


class Epoch(Sequence["Step"]):
    """Lessons of the step that is asked for, as often as it is. How many documents were left out so far is said at the
    first of them and with the last step."""

    def __init__(self, steps: Sequence[Sequence[Sequence[Example]]], maker: LessonMaker) -> None:
        self._steps, self._maker, self._left_out = steps, maker, 0

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, number: int) -> Step: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Step]: ...
    def __getitem__(self, number: int | slice) -> Step | Sequence[Step]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        made = [self._lessons(batch) for batch in self._steps[number]]
        if self._left_out and number in (len(self) - 1, -1):
            say(f"{self._left_out} documents of this epoch could not be taught")
        return made

    def _lessons(self, examples: Sequence[Example]) -> list[Lesson]:
        lessons = []
        for example in examples:
            try:
                lessons.append(self._maker.lesson(example))
            except PromptError as error:
                if not self._left_out:
                    say(f"a document cannot be taught and is left out, as others may be in this epoch: {error}")
                self._left_out += 1
        return lessons
