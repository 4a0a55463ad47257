"""Losses that a trainer takes of a model's logits: of each token, times a number that is no variable.

dft: the token's probability, as LLaMA-Factory ff6d4d1 and ms-swift 3602360 take it. eaft: the entropy of the 20 largest
logits, LLaMA-Factory's. eaft_of_rows: the same of copies of rows that count, axolotl 067b021's.
"""
import torch

IGNORED, LARGEST = -100, 20


def entropy(largest, normed):
    logarithms = largest - normed
    return -(logarithms.exp() * logarithms).sum(-1)


def summed(losses, weights, count):
    weighted = losses * weights
    return weighted.sum() / count if count is not None else weighted.mean()


def of_all_rows(weights_of):
    def loss(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits.float()
        targets = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)
        logits = logits.view(-1, logits.size(-1))
        losses = torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
        counts = targets != IGNORED
        counted = losses[counts]
        with torch.no_grad():
            weights = weights_of(logits, counts, counted)
        return summed(counted, weights, num_items_in_batch)

    return loss


def probabilities(logits, counts, losses):
    return torch.exp(-losses)


def entropies(logits, counts, losses):
    rows = logits[counts].detach()
    largest, _ = torch.topk(rows, k=LARGEST, dim=-1)
    return entropy(largest, torch.logsumexp(largest, dim=-1, keepdim=True)) / 3.0


def of_rows_that_count(outputs, labels, num_items_in_batch=None):
    logits = outputs.logits[..., :-1, :].contiguous()
    targets = labels[..., 1:].contiguous().view(-1)
    logits = logits.view(-1, logits.size(-1))
    counts = targets != IGNORED
    with torch.no_grad():
        largest, _ = torch.topk(logits[counts].float(), k=LARGEST, dim=-1)
        weights = entropy(largest, torch.logsumexp(largest, dim=-1, keepdim=True))
    losses = torch.nn.functional.cross_entropy(logits[counts], targets[counts], reduction="none")
    return summed(losses, weights, num_items_in_batch)


LOSSES = {"dft": of_all_rows(probabilities), "eaft": of_all_rows(entropies), "eaft_of_rows": of_rows_that_count}
