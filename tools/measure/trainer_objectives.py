"""Objectives other than the next token, on one GPU: losses of preferences in the order in which their trainers take them.

A case's members: objective dpo|orpo|kto, objective_trainer trl|llamafactory. Of a batch the first half of rows is chosen,
the second rejected. objective asft is the next token's, anchored to a frozen copy of the model in bf16. Sources: TRL 1.8.0 trainer/dpo_trainer.py, kto_trainer.py, utils.py, experimental/orpo/orpo_trainer.py;
LLaMA-Factory ff6d4d1 src/llamafactory/train/dpo/trainer.py, sft/trainer.py, trainer_utils.py.
"""
import contextlib

import torch
from torch.nn import functional

CHUNK = 128  # rows whose entropy is logged at once


def of_sequences(logits, labels):
    """TRL's log-probabilities: of fp32 by the sums of each sequence, else by its log-softmax."""
    places = labels.unsqueeze(-1)
    if logits.dtype == torch.float32:
        chosen = torch.gather(logits, dim=-1, index=places)
        sums = torch.stack([torch.logsumexp(sequence, dim=-1) for sequence in logits])
        found = chosen - sums.unsqueeze(-1)
    else:
        parts = []
        for sequence, of_sequence in zip(logits, places):
            normed = functional.log_softmax(sequence, dim=-1)
            parts.append(normed.gather(dim=-1, index=of_sequence))
        found = torch.stack(parts)
    return found.squeeze(-1)


def at_once(logits, labels):
    """LLaMA-Factory's: by one log-softmax of all."""
    return torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)


def entropy(logits):
    rows, found = logits.reshape(-1, logits.shape[-1]), []
    for chunk in rows.split(CHUNK, dim=0):
        normed = functional.log_softmax(chunk, dim=-1)
        found.append(-(torch.exp(normed) * normed).sum(-1))
    return torch.cat(found)


def pairs_loss(ratios):
    chosen, rejected = ratios.chunk(2, dim=0)
    return -functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def weighted_by_probability(rows, targets):
    losses = functional.cross_entropy(rows, targets, reduction="none")
    counted = losses[targets != -100]
    with torch.no_grad():
        weights = torch.exp(-counted)
    return (counted * weights).mean()


def divergence(rows, of_reference):
    normed = functional.log_softmax(rows, dim=-1)
    wanted = functional.softmax(of_reference, dim=-1)
    return functional.kl_div(normed, wanted, reduction="none").sum(dim=-1).mean()


def anchored(rows, targets, of_reference):
    loss = weighted_by_probability(rows, targets)
    return loss + 0.1 * divergence(rows, of_reference)


class Comparison:
    """Calls of a model and of its reference, and what is taken of their logits."""

    def __init__(self, whole, reference, case):
        self.whole, self.reference = whole, reference
        self.is_factory = case.get("objective_trainer", "trl") == "llamafactory"

    def logits(self, model, tokens, mask):
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        return logits.to(torch.float32) if self.is_factory else logits

    def log_probabilities(self, logits, tokens):
        return (at_once if self.is_factory else of_sequences)(logits[..., :-1, :], tokens[..., 1:])

    def of_reference(self, tokens, mask):
        """The reference's logits, without a graph."""
        off = contextlib.nullcontext() if self.reference is not None else self.whole.disable_adapter()
        recomputes = self.whole.is_gradient_checkpointing and not self.is_factory
        if recomputes:
            self.whole.gradient_checkpointing_disable()
        with torch.no_grad(), off:
            logits = self.logits(self.whole if self.reference is None else self.reference, tokens, mask)
        if recomputes:
            self.whole.gradient_checkpointing_enable({"use_reentrant": False})
        return logits

    def factory_reference(self, tokens, mask):
        with torch.no_grad():
            return self.log_probabilities(self.of_reference(tokens, mask), tokens).sum(-1)

    def dpo(self, model, tokens, mask):
        logits = self.logits(model, tokens, mask)
        ratios = self.log_probabilities(logits, tokens).sum(-1)
        if self.is_factory:
            return pairs_loss(ratios - self.factory_reference(tokens, mask))
        reference = self.of_reference(tokens, mask)
        loss = pairs_loss(ratios - self.log_probabilities(reference, tokens).sum(-1))
        entropy(logits[..., :-1, :].detach())
        for half, of_half in zip(logits[..., :-1, :].detach().chunk(2), mask[..., 1:].chunk(2)):
            half[of_half.bool()].mean(-1).sum()
        return loss

    def asft(self, model, tokens, mask):
        with torch.no_grad():
            returned = self.reference(input_ids=tokens, attention_mask=mask)  # with its keys and values
        logits = model(input_ids=tokens, attention_mask=mask, labels=tokens).logits.float()
        rows = logits[..., :-1, :].contiguous()
        of_reference = returned.logits[..., :-1, :].contiguous()
        flat = (-1, rows.shape[-1])
        return anchored(rows.view(flat), tokens[..., 1:].reshape(-1), of_reference.view(flat))

    def orpo(self, model, tokens, mask):
        logits = self.logits(model, tokens, mask)
        chosen = logits[: len(tokens) // 2][..., :-1, :].contiguous()
        of_chosen = functional.cross_entropy(chosen.view(-1, chosen.shape[-1]), tokens[: len(tokens) // 2, 1:].reshape(-1))
        del chosen
        return of_chosen + pairs_loss(self.log_probabilities(logits, tokens).mean(-1))

    def kto(self, model, tokens, mask):
        with torch.no_grad():
            self.log_probabilities(self.logits(model, tokens, mask), tokens)
        logits = self.logits(model, tokens, mask)
        ratios = self.log_probabilities(logits, tokens).sum(-1)
        halves = [logits.index_select(0, rows) for rows in torch.arange(len(tokens), device=logits.device).chunk(2)]
        with torch.no_grad():
            self.log_probabilities(self.of_reference(tokens, mask), tokens)
        reference = self.of_reference(tokens, mask)
        ratios = ratios - self.log_probabilities(reference, tokens).sum(-1)
        entropy(logits[:, :-1, :].detach())
        del halves
        return (1 - torch.sigmoid(0.1 * ratios)).mean()


def trainer_class(case, base, make_model):
    """The Trainer whose loss is the case's objective; make_model() makes a reference of all parameters."""
    if not case.get("objective"):
        return base

    class ObjectiveTrainer(base):
        def __init__(self, *inputs, **others):
            super().__init__(*inputs, **others)
            self.model_accepts_loss_kwargs = False
            self.comparison = None

        def compare(self):
            needs = case["objective"] in ("dpo", "kto", "asft") and not case.get("lora")
            reference = self.accelerator.prepare_model(make_model(), evaluation_mode=True).eval() if needs else None
            return Comparison(self.accelerator.unwrap_model(self.model), reference, case)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if self.comparison is None:
                self.comparison = self.compare()
            return getattr(self.comparison, case["objective"])(model, inputs["input_ids"], inputs["attention_mask"])

    return ObjectiveTrainer
