#include "estimator/frameworks/megatron/muon.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/megatron/host.h"
#include "estimator/frameworks/pieces/newton_schulz.h"
#include "estimator/ledger/layer_blocks.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/number.h"
#include "estimator/plan/parameters.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/kernel_time.h"

namespace shardplan::megatron {
namespace {

// arguments.py: --muon-num-ns-steps, and the quintic coefficients, of which there are as many.
// Vectors, and the matrices that are no linear layer's.
void add_others(std::vector<MuonTensor>& tensors, const Job& job, const Plan& plan,
                const std::vector<ParameterTensor>& block, std::int64_t count) {
  for (const ParameterTensor& tensor : block) {
    if (tensor.is_linear || tensor.sharding == Sharding::kVocab) {
      continue;
    }
    const std::int64_t elements = local_elements(job, plan, tensor);
    const bool is_matrix = tensor.name == "router" || tensor.name == "shared.gate";
    const std::int64_t columns = is_matrix ? job.model.hidden : 1;
    tensors.push_back({.rows = div_exact(elements, columns),
                       .columns = columns,
                       .count = count,
                       .is_matrix = is_matrix});
  }
}

void add_block(std::vector<MuonTensor>& tensors, const Job& job, const Plan& plan, BlockKind kind,
               const std::vector<ParameterTensor>& block, std::int64_t count) {
  if (count == 0) {
    return;
  }
  add_others(tensors, job, plan, block, count);
  // weight_shapes: a module's projection, attention, routed experts, shared ones.
  const bool is_module = kind == BlockKind::kMtp;
  const bool is_moe = kind == BlockKind::kMoeLayer || (is_module && job.model.layers.back().is_moe);
  const std::vector<WeightShape> shapes = weight_shapes(job, plan, kind);
  const std::size_t num_experts = is_moe ? expert_weight_shapes(job, plan).size() : 0;
  const std::size_t num_shared = is_moe && job.model.moe.shared_ffn > 0 ? 2 : 0;
  const std::size_t first_expert = shapes.size() - num_shared - num_experts;
  const std::size_t packed_qkv = is_module ? 1 : 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const bool is_packed = i == packed_qkv && !job.model.is_mla();
    tensors.push_back(
        {.rows = shapes[i].rows,
         .columns = shapes[i].columns,
         .count = count * shapes[i].count,
         .key_rows = is_packed ? div_ceil(job.model.num_kv_heads, plan.tp) * job.model.head_dim : 0,
         .is_matrix = true,
         .is_expert = i >= first_expert && i < first_expert + num_experts});
  }
}

// Ranks that share the state of such a tensor; experts have a list of their own with ep alone.
std::int64_t ranks_of(const Job& job, const Plan& plan, bool is_apart) {
  if (!divides_muon(job, plan)) {
    return 1;
  }
  return is_apart ? expert_state_shards(job, plan) : dense_shard_size(job, plan);
}

bool is_apart(const Plan& plan, const MuonTensor& tensor) {
  return tensor.is_expert && plan.ep > 1;
}

// Main parameter and moments, in elements.
std::int64_t state_elements(const MuonTensor& tensor) {
  return tensor.elements() * (tensor.is_matrix ? 2 : 3);
}

// The tensors that are, or are not, experts' with ranks of their own, dealt to ranks 0, 1, .. r-1,
// r-1, .. 1, 0 and again.
class Deal {
 public:
  Deal(const Job& job, const Plan& plan, const std::vector<MuonTensor>& tensors, bool apart)
      : ranks_(ranks_of(job, plan, apart)) {
    std::int64_t next = 0;
    for (const MuonTensor& tensor : tensors) {
      if (is_apart(plan, tensor) == apart) {
        runs_.push_back({.tensor = tensor, .first = next, .last = next + tensor.count});
        next += tensor.count;
      }
    }
  }

  std::int64_t ranks() const { return ranks_; }

  // Of the rank that gets the most, and which it is: by what `of` says of one tensor.
  template <class Of>
  auto most(Of of) const {
    std::vector<decltype(of(MuonTensor{}))> each;
    for (const Run& run : runs_) { each.push_back(of(run.tensor)); }
    auto amount_of = [&](std::int64_t rank) {
      decltype(of(MuonTensor{})) amount = 0;
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        amount += static_cast<decltype(amount)>(count(runs_[i], rank)) * each[i];
      }
      return amount;
    };
    std::pair most(amount_of(0), std::int64_t{0});
    for (std::int64_t rank = 1; rank < ranks_; ++rank) {
      const auto amount = amount_of(rank);
      most = amount > most.first ? std::pair(amount, rank) : most;
    }
    return most;
  }

  std::int64_t elements() const {
    std::int64_t elements = 0;
    for (const Run& run : runs_) { elements += run.tensor.count * run.tensor.elements(); }
    return elements;
  }

  void append_to(std::vector<MuonTensor>& tensors, std::int64_t rank) const {
    for (const Run& run : runs_) {
      tensors.push_back(run.tensor);
      tensors.back().count = count(run, rank);
    }
    std::erase_if(tensors, [](const MuonTensor& tensor) { return tensor.count == 0; });
  }

 private:
  // Equal tensors, by their places in the row that is dealt.
  struct Run {
    MuonTensor tensor;
    std::int64_t first = 0;
    std::int64_t last = 0;
  };

  std::int64_t count(const Run& run, std::int64_t rank) const {
    return before(run.last, rank) - before(run.first, rank);
  }
  std::int64_t before(std::int64_t place, std::int64_t rank) const {
    const std::int64_t rest = place % (2 * ranks_);
    return 2 * (place / (2 * ranks_)) + (rest > rank ? 1 : 0) +
           (rest > 2 * ranks_ - 1 - rank ? 1 : 0);
  }

  std::int64_t ranks_;
  std::vector<Run> runs_;
};

// _allgather_helper; ProcessGroupNCCL, allgather: equal sizes are gathered in one piece.
MuonGather gather_of(const Deal& deal) {
  if (deal.ranks() == 1) {
    return {};
  }
  const std::int64_t all = deal.elements();
  const std::int64_t most =
      deal.most([](const MuonTensor& tensor) { return tensor.elements(); }).first;
  return {
      .ranks = deal.ranks(), .all = all, .own = most, .flat = most * deal.ranks() == all ? all : 0};
}

// Newton-Schulz ends with the orthogonalised matrix in fp32, that scaled, and scaled once more;
// with Nesterov's momentum the gradient so changed stands beside. Queries, keys and values are
// copied apart first.
MuonTemporary temporary_of(const Job& job, const MuonTensor& tensor) {
  if (!tensor.is_matrix) {
    return {};
  }
  return {.matrix = (tensor.rows - 2 * tensor.key_rows) * tensor.columns,
          .changed = job.profile.muon_nesterov ? tensor.elements() : 0,
          .parts = tensor.key_rows > 0 ? tensor.elements() : 0};
}

// Per element of a matrix: decay of the main parameter 8, moment 12, norm 4, normalised 8, to bf16
// 6, in every step the copy that the product adds to 4 and its reading 2, to fp32 6, scaled twice
// 8, update 12; per element of the square matrix in every step twice 6, of which one is read.
KernelBytes matrix_kernels(double elements, double square) {
  return {.streamed = elements * (8 + 12 + 4 + 8 + 6 * kNewtonSchulzSteps + 2 * 8 + 12) +
                      square * 6 * kNewtonSchulzSteps,
          .converted = elements * (6 + 6)};
}

double matrix_s(const GpuSpec& gpu, std::int64_t rows, std::int64_t columns) {
  const double small = number(std::min(rows, columns));
  return newton_schulz_s(gpu, rows, columns) +
         elementwise_s(gpu, matrix_kernels(number(rows * columns), small * small));
}

double update_s(const GpuSpec& gpu, const MuonTensor& tensor) {
  if (!tensor.is_matrix) {
    return 0;
  }
  const std::int64_t first = tensor.rows - 2 * tensor.key_rows;
  const double keys_s = tensor.key_rows > 0 ? matrix_s(gpu, tensor.key_rows, tensor.columns) : 0;
  return matrix_s(gpu, first, tensor.columns) + 2 * keys_s;
}

}  // namespace

bool divides_muon(const Job& job, const Plan& plan) {
  return job.optimizer == OptimizerKind::kDistMuon && dense_shard_size(job, plan) > 1;
}

HeldBlocks held_blocks(const Job& job, const StageLayout& stage) {
  HeldBlocks held = {.dense_layers = count_blocks(stage, BlockKind::kDenseLayer),
                     .moe_layers = count_blocks(stage, BlockKind::kMoeLayer),
                     .mtp_modules = count_blocks(stage, BlockKind::kMtp),
                     .tables = stage.ends.has_embedding ? 1 : 0,
                     .has_final_norm = stage.ends.has_head};
  held.tables += stage.ends.has_head && !job.model.tied_embeddings ? 1 : 0;
  for (const ChunkLayout& chunk : stage.chunks) { held.tables += chunk.has_embedding_copy ? 1 : 0; }
  return held;
}

std::vector<MuonTensor> muon_tensors(const Job& job, const Plan& plan, const HeldBlocks& held) {
  const ModelSpec& model = job.model;
  std::vector<MuonTensor> tensors;
  add_block(tensors, job, plan, BlockKind::kDenseLayer,
            layer_parameters(model, layer_of(job, BlockKind::kDenseLayer)), held.dense_layers);
  add_block(tensors, job, plan, BlockKind::kMoeLayer,
            layer_parameters(model, layer_of(job, BlockKind::kMoeLayer)), held.moe_layers);
  if (held.mtp_modules > 0) {
    add_block(tensors, job, plan, BlockKind::kMtp, mtp_parameters(model), held.mtp_modules);
  }
  if (held.has_final_norm) {
    add_others(tensors, job, plan, head_parameters(model), 1);
  }
  if (held.tables > 0) {
    tensors.push_back(
        {.rows = local_elements(job, plan, table_parameters(model).front()), .count = held.tables});
  }
  std::ranges::stable_sort(tensors, [](const MuonTensor& one, const MuonTensor& other) {
    return std::pair(one.elements(), !one.is_matrix) <
           std::pair(other.elements(), !other.is_matrix);
  });
  return tensors;
}

std::vector<MuonTensor> fullest_muon_tensors(const Job& job, const Plan& plan,
                                             const std::vector<MuonTensor>& tensors) {
  std::vector<MuonTensor> own;
  for (const bool apart : {false, true}) {
    const Deal deal(job, plan, tensors, apart);
    deal.append_to(own, deal.most(state_elements).second);
  }
  return own;
}

MuonShare fullest_muon_share(const Job& job, const Plan& plan,
                             const std::vector<MuonTensor>& tensors) {
  MuonShare share;
  for (const MuonTensor& tensor : fullest_muon_tensors(job, plan, tensors)) {
    const std::int64_t elements = tensor.count * tensor.elements();
    (tensor.is_expert ? share.expert : share.dense) += elements;
    share.dense_second_moment += tensor.is_matrix ? 0 : elements;
    share.temporary =
        std::ranges::max(share.temporary, temporary_of(job, tensor), {}, &MuonTemporary::total);
  }
  share.gather =
      std::ranges::max(gather_of(Deal(job, plan, tensors, false)),
                       gather_of(Deal(job, plan, tensors, true)), {}, &MuonGather::total);
  return share;
}

double muon_s(const Job& job, const Plan& plan, const std::vector<MuonTensor>& tensors) {
  const auto kernels_s = [&](const MuonTensor& tensor) {
    return update_s(job.cluster.gpu, tensor);
  };
  const auto host_s = [&](const MuonTensor& tensor) {
    const double parts = tensor.key_rows > 0 ? 3 : 1;
    return tensor.is_matrix ? parts * host_orthogonalize_s(job) : 0;
  };
  double seconds = 0;
  for (const bool apart : {false, true}) {
    const Deal deal(job, plan, tensors, apart);
    seconds += std::max(deal.most(kernels_s).first, deal.most(host_s).first);
  }
  return seconds;
}

}  // namespace shardplan::megatron
