"""Ranks that are threads of one process, for tests of what they exchange."""

import threading

import numpy as np
import torch

from unibct.distributed.ranks import Ranks

_SECONDS = 60  # until a rank that waits for the others gives up


class ThreadRanks(Ranks):
    """A rank whose messages go through memory. Make all of them with ``run_ranks``."""

    meeting = None
    messages = None

    def _exchange(self, value):
        """Return the values of all ranks."""
        self.messages[self.rank] = value
        self.meeting.wait(_SECONDS)
        values = [self.messages[rank] for rank in range(self.world)]
        self.meeting.wait(_SECONDS)
        return values

    def barrier(self):
        self._exchange(None)

    def gathered(self, tensor):
        return torch.cat(self._exchange(tensor))

    def summed(self, tensor):
        return tensor.copy_(sum(self._exchange(tensor.clone())))

    def broadcast_numbers(self, *numbers):
        return list(self._exchange(numbers)[0])

    def broadcast_array(self, array):
        return np.array(self._exchange(array)[0])

    def _broadcast_text(self, text):
        return self._exchange(text)[0]

    def summed_array(self, array):
        return sum(self._exchange(array))


def run_ranks(world, function):
    """Call ``function(ranks)`` in a thread for each rank; return the results or the errors."""
    meeting, messages, results = threading.Barrier(world), {}, [None] * world

    def run(rank):
        ranks = ThreadRanks(rank, world)
        object.__setattr__(ranks, "meeting", meeting)
        object.__setattr__(ranks, "messages", messages)
        try:
            results[rank] = function(ranks)
        except Exception as error:
            results[rank] = error
            if isinstance(error, threading.BrokenBarrierError):
                meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
