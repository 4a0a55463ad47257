"""PyTorch's Muon as trainers use it: on the matrices of layers, and fused AdamW on tables and vectors."""
import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """Its two optimizers are made by the first step, when accelerate has put a model's shards in their places."""

    def __init__(self, groups, lr, table_rows):
        super().__init__(groups, {"lr": lr})
        self.table_rows, self.parts = table_rows, None

    def is_for_muon(self, parameter):
        return parameter.ndim == 2 and parameter.shape[0] != self.table_rows

    def make_parts(self):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        lr = self.param_groups[0]["lr"]
        matrices = [parameter for parameter in parameters if self.is_for_muon(parameter)]
        others = [parameter for parameter in parameters if not self.is_for_muon(parameter)]
        return torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(others, lr=lr, fused=True)

    @torch.no_grad()
    def step(self, closure=None):
        self.parts = self.parts or self.make_parts()
        for part in self.parts:
            part.step()
