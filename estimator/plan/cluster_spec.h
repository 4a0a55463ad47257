// GPUs and the network between them. Datasheet numbers always; measured ones where `calibrate` has
// run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "estimator/plan/plan.h"

namespace shardplan {

// One point of a curve: at `size` (the curve says of what) this value (share of a peak, FLOP/s,
// seconds). Sizes ascend.
struct CurvePoint {
  double size = 0;
  double value = 0;
};

// FLOP/s of products [m, k] x [k, n] at every combination of three ascending lists of sizes; the
// entry of (m[i], n[j], k[l]) is (i * n.size() + j) * k.size() + l. The passes of a linear layer
// are apart, as each reads its operands in a layout of its own.
struct GemmGrid {
  std::vector<double> m;
  std::vector<double> n;
  std::vector<double> k;
  std::vector<double> forward;          // rows x in, weight out x in
  std::vector<double> input_gradient;   // rows x out, weight out x in
  std::vector<double> weight_gradient;  // both operands by rows, the output a weight
  std::vector<double> accumulated;      // the same added to fp32; empty: not measured
};

// A call is timed at the clock of a training step: behind a load that takes so many times as long.
inline constexpr double kLoadOverCall = 3;

// Causal attention: FLOP/s by sequence length, the triangle counted once, backward as 2.5 forwards.
// A call has `heads` of as many sequences as `tokens` make, one at least; `few`: of one sequence
// and few heads, which end less evenly over the multiprocessors. Empty: not measured.
struct AttentionRates {
  std::vector<CurvePoint> forward;
  std::vector<CurvePoint> backward;
};
struct AttentionCurve {
  std::int64_t head_dim = 0;
  std::vector<CurvePoint> forward;
  std::vector<CurvePoint> backward;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  AttentionRates few = {};
  std::int64_t few_heads = 0;
  std::optional<double> clock_over_products = {};  // as that of copies, below
};

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSend };

inline constexpr std::array<NamedValue<Collective>, 5> kCollectives = {{
    {.value = Collective::kAllGather, .name = "all_gather"},
    {.value = Collective::kReduceScatter, .name = "reduce_scatter"},
    {.value = Collective::kAllReduce, .name = "all_reduce"},
    {.value = Collective::kAllToAll, .name = "all_to_all"},
    {.value = Collective::kSend, .name = "send"},
}};
constexpr const auto& names_of(Collective) {
  return kCollectives;
}

// One collective in a group inside an NVLink domain: seconds by bytes, as collective_time.h counts
// them.
struct CollectiveCurve {
  Collective collective = Collective::kAllGather;
  std::int64_t ranks = 0;
  std::vector<CurvePoint> seconds;
};

// Products of all experts of a rank in one launch, by the trainer's own kernels: FLOP/s by rows of
// one expert. Empty: not measured.
struct GroupedRates {
  std::vector<CurvePoint> forward;
  std::vector<CurvePoint> input_gradient;
  std::vector<CurvePoint> weight_gradient;  // added to fp32
};

// A collective beside products: what each keeps of the rate that it has alone.
struct BesideRates {
  double products = 1;
  double collectives = 1;
};

// Of one communicator, GPUs of a host: so many may do without NCCL.
inline constexpr std::int64_t kMaxPeers = 8;

// Copy engines between GPUs of one host and NVLink domain, as our own trainer has them
// (validator/cuda/peers.h).
struct CopiesBetweenGpus {
  // By collective, then ranks. all_gather, send, and of all_to_all that every member receives one
  // part from each other member. Empty: not measured.
  std::vector<CollectiveCurve> collectives;
  std::optional<BesideRates> beside;  // nothing: not measured
};

// What `calibrate --time` found: rates that last, not bursts.
struct MeasuredTimes {
  GemmGrid gemm;  // bf16
  // As the trainer runs them: weight gradients are added to fp32. Empty: not measured.
  GemmGrid gemm_fp8;
  std::vector<AttentionCurve> attention;  // by head dimension, ascending; between products
  GroupedRates grouped;
  double copy_bytes_per_s = 0;  // read and written, of a copy on the device
  // The clock that a GPU at its limit of power keeps while it copies, over that of products;
  // nothing: not measured.
  std::optional<double> copy_clock_over_products = {};
  double launch_s = 0;                       // host time of one kernel launch
  std::vector<CollectiveCurve> collectives;  // by NCCL; by collective, then ranks; empty: one GPU
  std::optional<BesideRates> beside;         // nothing: not measured
  CopiesBetweenGpus copies;
  std::string source;  // command, machine, versions, date
};

// What a process of the native trainer holds outside its arenas and communicators, as
// `calibrate --memory` found it. Driver-level bytes.
struct NativeMemory {
  std::int64_t context_bytes = 0;  // after the CUDA context was created
  std::int64_t library_bytes = 0;  // cuBLASLt, cuDNN and the kernels of a step, once loaded
  // With the first communicator and the first message, beside what each communicator takes; absent
  // where one GPU was all there was.
  std::optional<std::int64_t> nccl_bytes = std::nullopt;
  std::optional<std::int64_t> first_send_bytes = std::nullopt;
  std::string source;  // command, machine, versions
};

// What large products and attention keep up among other work where the rates of `calibrate --time`
// are absent: a GPU at its limit of power runs below its datasheet's peak.
struct SustainedRates {
  double bf16_flops_per_s = 0;    // of products with sides of thousands; as much in fp16
  double fp8_flops_per_s = 0;     // 0: the chip has none
  double attention_of_curve = 0;  // of the curves of TimeConstants
  std::string source = {};
};

struct TimeConstants;

struct GpuSpec {
  std::string id;  // "H200-SXM-141GB"
  std::vector<std::string> aliases;
  std::string source;
  std::int64_t compute_capability = 0;  // 80, 89, 90, 100
  std::int64_t num_sms = 0;
  std::int64_t nominal_memory_bytes = 0;  // as sold, decimal: 141e9
  std::int64_t memory_bytes = 0;          // total that the driver reports (cudaMemGetInfo)
  double bf16_flops_per_s = 0;            // dense, not with sparsity
  double fp16_flops_per_s = 0;            // dense
  double fp8_flops_per_s = 0;             // dense; 0: the chip has none
  double fp32_flops_per_s = 0;            // outside the tensor cores
  double memory_bytes_per_s = 0;
  double nvlink_bytes_per_s = 0;            // per GPU, one direction; 0: no NVLink
  double pcie_bytes_per_s = 0;              // per GPU, one direction
  std::optional<SustainedRates> sustained;  // absent: the shares of an H200 (TimeConstants)

  // Measured by `shardplan calibrate`; absent: documented defaults are used and the report says so.
  std::optional<std::int64_t> context_bytes;             // driver-level use after context creation
  std::optional<std::int64_t> library_bytes;             // modules, cuBLAS and cuDNN handles
  std::optional<std::int64_t> first_communicator_bytes;  // first NCCL communicator used
  std::optional<std::int64_t> next_communicator_bytes;   // every further one that runs a collective
  std::optional<std::int64_t> idle_communicator_bytes;   // one of several ranks, never used
  std::optional<MeasuredTimes> times;
  std::optional<NativeMemory> native;
  std::string calibration_source;  // command, machine, date of the measured values

  // What the time model takes for granted of every GPU (time_constants.h); times need them.
  std::shared_ptr<const TimeConstants> constants;
};

struct ClusterSpec {
  std::string name;  // "1x8-h200"
  GpuSpec gpu;
  std::int64_t gpus_per_node = 8;
  std::int64_t nodes = 1;
  std::int64_t nvlink_domain = 8;     // GPUs that reach one another by NVLink, of this job or not
  double inter_node_bytes_per_s = 0;  // per GPU, one direction
  // Per GPU, its share of the node's DRAM, reads and writes together; as in a host of eight GPUs
  // with two sockets of eight channels of DDR4-3200.
  double host_memory_bytes_per_s = 51.2e9;
  // Time that Python on this host takes to launch work, over that of a DGX H100 (two Xeon Platinum
  // 8480C), as Megatron-LM's tests there took it (data/frameworks/megatron.json).
  double host_slowdown = 1;
  double intra_node_latency_s = 0;  // of one step of a collective inside the NVLink domain
  double inter_node_latency_s = 0;  // of one step across it
  std::string network;              // "InfiniBand NDR, 8 rails"
  double usd_per_gpu_hour = 0;      // 0: not stated
  std::optional<std::int64_t> memory_limit_bytes;  // --gpu-memory; stands in for both capacities
  std::string source;

  std::int64_t world_size() const { return gpus_per_node * nodes; }

  // GPUs of this cluster that share one NVLink domain. Of a domain that spans nodes a job gets as
  // many whole nodes, equally many of every domain, as Slurm's --segment gives it: the largest
  // number that divides the nodes (Megatron-Bridge v0.2.0 scripts/performance/utils/executors.py),
  // so that 256 GPUs of GB200 NVL72 lie in four domains with 64 each.
  std::int64_t gpus_per_domain() const {
    if (nvlink_domain <= gpus_per_node) {
      return nvlink_domain < 1 ? 1 : nvlink_domain;
    }
    std::int64_t together = nvlink_domain / gpus_per_node;
    together = together < nodes ? together : nodes;
    while (nodes % together != 0) { --together; }
    return together * gpus_per_node;
  }
};

}  // namespace shardplan
