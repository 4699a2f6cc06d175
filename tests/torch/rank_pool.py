"""Processes that form a Gloo group and run functions of tests together.

Starting them takes seconds, so a test module starts them once and sends them all of its cases.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import traceback

import torch
import torch.distributed as dist

_COMPILER = ("torch._dynamo", "torch._functorch.aot_autograd")


class RankPool:
    """A number of processes, each with its rank in one process group."""

    def __init__(self, size, folder, modules=()):
        # Import torch and its compiler once, in the process that is forked for each rank.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["everypair.torch", *_COMPILER, *modules])
        self.size = size
        self._tasks = [context.SimpleQueue() for _ in range(size)]
        self._results = context.Queue()
        store = folder / "store"
        self._processes = [
            context.Process(
                target=_serve,
                args=(rank, size, store, self._tasks[rank], self._results),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in self._processes:
            process.start()

    def run(self, function, *arguments, timeout=120):
        """Call ``function(*its arguments)`` on every rank and return the results in order of ranks.

        Each of `arguments` is a list with one entry for each rank. Fails if a rank raises an error
        or does not return in time.
        """
        for rank in range(self.size):
            # Pickled here: torch would share the memory of tensors between the processes instead.
            task = function, [of_ranks[rank] for of_ranks in arguments]
            self._tasks[rank].put(pickle.dumps(task))
        results = {}
        while len(results) < self.size:
            try:
                rank, result, error = self._results.get(timeout=timeout)
            except queue.Empty:
                late = sorted(set(range(self.size)) - results.keys())
                raise AssertionError(f"ranks {late} did not return in {timeout} s") from None
            results[rank] = (pickle.loads(result), error)
        for rank, (_, error) in results.items():
            assert error is None, f"rank {rank}:\n{error}"
        return [results[rank][0] for rank in range(self.size)]

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank, size, store, tasks, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        function, arguments = pickle.loads(tasks.get())
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception:
            error = traceback.format_exc()
        results.put((rank, pickle.dumps(result), error))
