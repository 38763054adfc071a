"""Parts with one planted fault each, which get past every check that composing makes."""

import numpy as np
import torch
from subjects import SendsAlong

from fedsim.arrays import add_clipped
from fedsim.cohort import CohortSampler
from fedsim.flower_seam import to_arrays, to_record
from fedsim.privacy.central import CentralGaussian
from fedsim.streams import torch_stream
from fedsim.training.pooled import PooledStep
from fedsim.training.user_level import UserLevelSteps
from fedsim.update_sum import FoldRule
from fedsim_strategies.fedavg import FedAvg


class InvertedSign(CentralGaussian):
    """Flower 1.42's adaptive clipping: the norm runs away."""

    def release(self, total, update_norms, round_num):
        before = self.clipping_norm
        figures = super().release(total, update_norms, round_num)
        self.clipping_norm = before**2 / self.clipping_norm
        return figures


class DrawnDenominator(CentralGaussian):
    """Divides by how many took part."""

    def release(self, total, update_norms, round_num):
        self._drawn = len(update_norms)
        return super().release(total, update_norms, round_num)

    @property
    def denominator(self):
        return float(max(1, self._drawn))


class ReusedNoise(CentralGaussian):
    """Takes the first round's noise in every round."""

    def release(self, total, update_norms, round_num):
        return super().release(total, update_norms, 1)


class _ScaledNoise(CentralGaussian):
    """Prints the noise that is claimed, and adds less."""

    def _factor(self):
        return 1.0

    def _add_noise(self, total, round_num):
        clean = {name: tensor.clone() for name, tensor in total.items()}
        super()._add_noise(total, round_num)
        for name, tensor in total.items():
            tensor.copy_(clean[name] + (tensor - clean[name]) * self._factor())
        return 0.0


class WeakNoise(_ScaledNoise):
    """10 % too small."""

    def _factor(self):
        return 0.9


class TinyNoise(_ScaledNoise):
    """So small that the game alone must see it."""

    def _factor(self):
        return 0.02


class ScaledTwice(_ScaledNoise):
    """C / C~ twice over."""

    def _factor(self):
        return self.cohort_size / self.noise_cohort_size


class UnscaledAndPrinted(CentralGaussian):
    """No C / C~ at all, in the noise and in what is printed."""

    @property
    def noise_stddev_sum(self):
        return self.sum_noise_multiplier * self.sensitivity


class NextNorm(CentralGaussian):
    """Adapts first, and noises with the next round's norm."""

    def release(self, total, update_norms, round_num):
        used = self.clipping_norm
        super().release({n: t.clone() for n, t in total.items()}, update_norms, round_num)
        adapted, self.adaptive, adapting = self.clipping_norm, None, self.adaptive
        multiplier, self.noise_multiplier = self.noise_multiplier, self._of_sum(adapting)
        figures = super().release(total, update_norms, round_num)
        self.adaptive, self.noise_multiplier, self.clipping_norm = adapting, multiplier, adapted
        assert used != adapted
        return figures

    def _of_sum(self, adapting):
        self.adaptive = adapting
        multiplier = self.sum_noise_multiplier
        self.adaptive = None
        return multiplier


class QuietCount(CentralGaussian):
    """Half the noise on the number of unclipped users."""

    @property
    def count_noise_stddev(self):
        return super().count_noise_stddev / 2


class MatricesOnly(CentralGaussian):
    """Leaves arrays without dimensions as they are."""

    def _add_noise(self, total, round_num):
        return super()._add_noise({n: t for n, t in total.items() if t.ndim}, round_num)


class ModelOnly(CentralGaussian):
    """Leaves what travels beside the model as it is."""

    def _add_noise(self, total, round_num):
        model = {name: t for name, t in total.items() if not name.startswith("beside")}
        return super()._add_noise(model, round_num)


class SameNoiseInEveryArray(CentralGaussian):
    """Starts the stream again for every array."""

    def _add_noise(self, total, round_num):
        for tensor in total.values():
            generator = torch_stream(self.seed, "central noise", round_num)
            noise = torch.randn(tensor.numel() + 16, generator=generator, dtype=tensor.dtype)
            tensor += self.noise_stddev_sum * noise[: tensor.numel()].reshape(tensor.shape)
        return 0.0


class CountsExamples(FedAvg):
    """Weights users by their examples, whatever the setting says."""

    def _rule(self):
        return FoldRule("examples", super()._rule().clipping_norm)


class Unclipped(FedAvg):
    """Leaves clipping out."""

    def _rule(self):
        return FoldRule(self.weighting)


class BesideUnclipped(SendsAlong):
    """Sums what travels beside the model by itself, and does not clip it."""

    def compose(self, cohort, mechanism=None):  # past the check of compose
        self._cohort, self._mechanism = cohort, mechanism

    def _fold(self):
        return {}

    def aggregate_train(self, server_round, replies):
        extra = {name: torch.zeros_like(t) for name, t in self._beside().items()}
        kept = []
        for reply in replies:
            arrays = to_arrays(reply.content["arrays"])
            for name, sent in self._beside().items():
                extra[name] += arrays[name] - sent
            reply.content["arrays"] = to_record({**arrays, **self._beside()})
            kept.append(reply)
        step = self.server_step
        self.server_step = lambda round_num, arrays, update: step(
            round_num,
            arrays,
            {
                name: t + extra[name] / self._mechanism.denominator if name in extra else t
                for name, t in update.items()
            },
        )
        try:
            return super().aggregate_train(server_round, kept)
        finally:
            self.server_step = step

    def _beside(self):
        return {name: t for name, t in self._sent.items() if name.startswith("beside")}


class UnclippedByTheEngine(FedAvg):
    """Clips what it folds itself; the rule that the engine folds by does not clip."""

    def configure_train(self, *args):
        self._sending = True
        messages = super().configure_train(*args)
        self._sending = False
        return messages

    def compose(self, cohort, mechanism=None):  # past the check of compose
        self._cohort, self._mechanism = cohort, mechanism

    def _rule(self):
        return FoldRule(self.weighting) if self._sending else super()._rule()


class DrawsTwice(CohortSampler):
    """The first user of a cohort is in it a second time."""

    def draw(self, round_num):
        drawn = super().draw(round_num)
        return np.concatenate([drawn, drawn[:1]])


class Favours(CohortSampler):
    """The first user of the table is always drawn."""

    def draw(self, round_num):
        return np.union1d(super().draw(round_num), [0])


class SameCohort(CohortSampler):
    """Draws one cohort for all rounds."""

    def draw(self, round_num):
        return super().draw(1)


class _OwnSteps(UserLevelSteps):
    """Steps of the pooled baseline, written once more."""

    def step(self, number):
        total, norms = [torch.zeros_like(p) for p in self._parameters], []
        for user in self._cohort.draw(number):
            own = self._gradient(int(user), torch.Generator())
            norms.append(add_clipped(total, own.gradients, self._bound(), self._weight(own)))
        figures = self._mechanism.release({str(i): t for i, t in enumerate(total)}, norms, number)
        torch._foreach_div_(total, self._mechanism.denominator)
        return PooledStep(total, 0.0, 0, figures)

    def _bound(self):
        return self._mechanism.clipping_norm

    def _weight(self, own):
        return 1.0


class UnclippedSteps(_OwnSteps):
    """Leaves clipping out."""

    def _bound(self):
        return float("inf")


class CountsImages(_OwnSteps):
    """Weights users by their images."""

    def _weight(self, own):
        return float(own.num_examples)


class AsksTheNextCohort(UserLevelSteps):
    """Takes users of another step than the sampler draws."""

    def step(self, number):
        return super().step(number + 1)
