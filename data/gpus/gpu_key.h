// GPUs by the names that nvidia-smi, PyTorch, lspci and sellers print.
#pragma once

#include <string>
#include <string_view>

namespace shardplan {

// The key of a GPU is what of its name tells one GPU from another, its words in the order of the
// alphabet: "80gb h100" of "NVIDIA H100 80GB HBM3", "80gb a100 sxm" of "A100-SXM4-80GB" and "GA100
// [A100 SXM4 80GB]".
std::string gpu_key(std::string_view name);

// Why no data describe the chip, where its name is one that is known not to be covered; else "".
std::string why_not_covered(std::string_view name);

}  // namespace shardplan
