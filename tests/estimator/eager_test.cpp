// nanotron and DeepSpeed: states and buckets counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "data/library.h"
#include "estimator/block_memory.h"
#include "estimator/deepspeed_buckets.h"
#include "estimator/deepspeed_state.h"
#include "estimator/deepspeed_timeline.h"
#include "estimator/eager_rows.h"
#include "estimator/estimate.h"
#include "estimator/layer_partition.h"
#include "estimator/stage_memory.h"
#include "estimator/stage_tensors.h"
#include "estimator/units.h"
#include "estimator/validity.h"

namespace shardplan {
namespace {

Job job_of(const std::string& framework, std::int64_t micro_batches) {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h100");
  job.profile = library.framework(framework);
  job.sequence_length = 1024;
  job.global_batch = 8 * micro_batches;
  return job;
}

Plan plan_with(std::int64_t zero, DType gradients) {
  Plan plan;
  plan.zero = zero;
  plan.grad_dtype = gradients;
  return plan;
}

constexpr std::int64_t kN = 8'030'261'248;  // Llama-3-8B

std::int64_t row_bytes(const MemoryEstimate& memory, std::string_view name) {
  std::int64_t bytes = 0;
  for (const Row& row : memory.stages.front().rows) { bytes += row.name == name ? row.bytes : 0; }
  return bytes;
}

// Of what DeepSpeed's first rank has allocated in its second step and later.
std::int64_t most_alive(const Job& job, const Plan& plan) {
  const std::size_t first = deepspeed_timeline(job, plan, 0, 1).size();
  std::unordered_map<std::int64_t, std::int64_t> bytes_of_tensor;
  std::int64_t alive = 0;
  std::int64_t most = 0;
  std::size_t seen = 0;
  for (const AllocationEvent& event : deepspeed_timeline(job, plan, 0, 2)) {
    std::int64_t& bytes = bytes_of_tensor[event.id];
    alive += event.bytes > 0 ? event.bytes : -bytes;
    bytes = event.bytes;
    most = ++seen > first ? std::max(most, alive) : 0;
  }
  return most;
}

}  // namespace

std::int64_t block_bytes(const BlockSet& blocks, BlockKind kind, std::string_view name) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : blocks[static_cast<std::size_t>(kind)].rows) {
    bytes += row.name == name ? row.bytes : 0;
  }
  return bytes;
}

TEST_CASE("DeepSpeed ZeRO-1, 2 and 3 hold these states") {
  const Job job = job_of("deepspeed", 1);
  const std::int64_t share = kN / 8;  // 1,003,782,656
  for (const std::int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    const MemoryEstimate memory = estimate_memory(job, plan_with(zero, DType::kBf16));
    CHECK(row_bytes(memory, "parameters") == 2 * (zero == 3 ? share : kN));
    CHECK(row_bytes(memory, "optimizer.fp32_partition") == 4 * share);
    CHECK(row_bytes(memory, "optimizer.exp_avg") == 4 * share);
    CHECK(row_bytes(memory, "optimizer.exp_avg_sq") == 4 * share);
    CHECK(row_bytes(memory, "step.fp32_gradients") == 4 * share);
    CHECK(row_bytes(memory, "gradients") == (zero == 1 ? 2 * kN : zero == 2 ? 0 : 2 * share));
    // 1e9 parameters stay gathered at most, 5e7 are prefetched; a table of 525,336,576 is one of
    // them.
    CHECK(row_bytes(memory, "gathered_tensor") == (zero == 3 ? 2 * 525'336'576 : 0));
    CHECK(row_bytes(memory, "gathered_parameters") == (zero == 3 ? 2 * 474'663'424 : 0));
    CHECK(row_bytes(memory, "prefetch_bucket") == (zero == 3 ? 100'000'000 : 0));
  }
}

// Without its table the model has less than 1e9: the table's prefetch leaves nothing behind.
TEST_CASE("DeepSpeed's ZeRO-3 gathers all of a model that its limits let it keep") {
  Job job = job_of("deepspeed", 2);
  job.model.layers.resize(2);
  const std::int64_t layer =
      2 * 4096 * 4096 + 2 * 4096 * 1024 + std::int64_t{3} * 4096 * 14336 + 8192;
  const std::int64_t parameters = 2 * std::int64_t{525'336'576} + 2 * layer + 4096;
  const MemoryEstimate memory = estimate_memory(job, plan_with(3, DType::kBf16));
  CHECK(row_bytes(memory, "gathered_tensor") + row_bytes(memory, "gathered_parameters") ==
        2 * parameters);
  CHECK(row_bytes(memory, "prefetch_bucket") == 0);
}

// Its calls are recorded, and parameters released after each.
TEST_CASE("the first microbatch of DeepSpeed's ZeRO-3 has one parameter gathered at a time") {
  Job job = job_of("deepspeed", 1);
  job.sequence_length = 4096;  // where a pass is the peak
  const StageMemory alone = estimate_memory(job, plan_with(3, DType::kBf16)).stages.front();
  job.global_batch *= 2;
  const StageMemory two = estimate_memory(job, plan_with(3, DType::kBf16)).stages.front();
  REQUIRE(alone.allocated_bytes == two.allocated_bytes);
  CHECK(two.first_step_bytes - alone.first_step_bytes == 2 * 474'663'424 + 100'000'000);
}

// The largest tensor is the table, 525,336,576 elements: 11 bytes of each against 6 of each of N/S.
TEST_CASE("DeepSpeed's overflow check needs more than its casts where a rank has little else") {
  for (const auto& [nodes, beyond] :
       {std::pair<std::int64_t, std::int64_t>{1, 0}, {16, 5 * div_ceil(kN, 128)}}) {
    Job job = job_of("deepspeed", 1);
    job.cluster.nodes = nodes;
    job.global_batch *= nodes;
    const MemoryEstimate memory = estimate_memory(job, plan_with(2, DType::kBf16));
    CHECK(row_bytes(memory, "step.overflow_check") == beyond);
  }
}

// A model of one layer: table and head 256,000, q and o 65,536, k and v 32,768, gate, up and down
// 131,072, three norms of 256; in all 1,102,592, over 4 ranks 275,648.
Job small_job() {
  Job job = job_of("deepspeed", 1);
  job.model.hidden = 256;
  job.model.ffn = 512;
  job.model.vocab = 1000;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 2;
  job.model.head_dim = 64;
  job.model.layers.resize(1);
  job.cluster.gpus_per_node = 4;
  return job;
}

// The first part reaches into table and q; the second into q, k, v, o and gate, 327,680; the third
// into gate, up and down; the last into down, norms and head, 387,840.
TEST_CASE("DeepSpeed keeps whole tensors of what a rank's part reaches into") {
  const DeepspeedBuckets buckets = deepspeed_buckets(small_job(), plan_with(2, DType::kBf16));
  CHECK(buckets.partition == 3 * 131'072);
  CHECK(deepspeed_fullest_part(small_job(), plan_with(2, DType::kBf16)).rank == 2);
  CHECK(buckets.elements == 500'000'000);
  CHECK_FALSE(buckets.fills);
  CHECK(buckets.flat_at_end == 1'102'592);
}

// A bucket of 300,000: final norm, down and up, of the two last ranks, are copied flat when gate
// finds no room, as many elements as from there to k when q finds none. The head before them is the
// last rank's alone.
TEST_CASE("DeepSpeed copies flat what several ranks keep of a bucket") {
  const Library library;
  Job job = small_job();
  apply_option(job.profile, "reduce_bucket_elements", "300000", library);
  const DeepspeedBuckets buckets = deepspeed_buckets(job, plan_with(2, DType::kBf16));
  CHECK(buckets.fills);
  CHECK(buckets.flat_in_head == 0);
  CHECK(buckets.flat_in_layers == 256 + 131'072 + 131'072);
  job.cluster.gpus_per_node = 1;
  const DeepspeedBuckets alone = deepspeed_buckets(job, plan_with(2, DType::kBf16));
  CHECK(alone.flat_in_layers == 0);
  CHECK(alone.flat_at_end == 0);
}

TEST_CASE("runs of one rank are copied together until they exceed the bucket's size") {
  // Ranks keep 10 each: the first tensor lies in three parts, the second in the last of them.
  const std::array tensors = {FlatRange{.begin = 5, .end = 25}, FlatRange{.begin = 25, .end = 28}};
  CHECK(deepspeed_flat_copies(tensors, 10, 100) == std::vector<std::int64_t>{23});
  CHECK(deepspeed_flat_copies(tensors, 10, 12) == std::vector<std::int64_t>{15});
  CHECK(deepspeed_flat_copies(tensors, 30, 100).empty());
}

// ZeRO-1 keeps every gradient from the first backward pass on; ZeRO-2 makes its bucket anew, and
// from the second microbatch on two of what its part reaches into.
TEST_CASE("DeepSpeed's gradients wait where its code leaves them") {
  const std::int64_t table = std::int64_t{128'256} * 4096;
  for (const std::int64_t microbatches : {1, 2}) {
    CAPTURE(microbatches);
    const Job job = job_of("deepspeed", microbatches);
    const BlockSet one = block_set(job, plan_with(1, DType::kBf16));
    CHECK(block_bytes(one, BlockKind::kHead, "gradients.of_weights") == 2 * table);
    CHECK(block_bytes(one, BlockKind::kHead, "reduce_bucket") == 2 * 500'000'000);
    CHECK(block_bytes(one, BlockKind::kDenseLayer, "gradients.of_weights") ==
          2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + std::int64_t{3} * 4096 * 14336));
    const BlockSet two = block_set(job, plan_with(2, DType::kBf16));
    const std::int64_t partition = 2 * deepspeed_buckets(job, plan_with(2, DType::kBf16)).partition;
    CHECK(block_bytes(two, BlockKind::kHead, "gradients.of_weights") == 0);
    CHECK(block_bytes(two, BlockKind::kHead, "gradients.accumulated") ==
          (microbatches == 1 ? 0 : partition));
    CHECK(block_bytes(two, BlockKind::kDenseLayer, "gradients.partition") == partition);
    CHECK(block_bytes(two, BlockKind::kDenseLayer, "reduce_bucket") == 2 * 500'000'000);
  }
}

// stage3.py, step: sub-groups of 1e9 elements of a rank. Llama-3-8B on one rank: the first ends
// with the o of its third layer, the second, which has that layer's ffn and three more layers, with
// the down of a fourth.
TEST_CASE("DeepSpeed's ZeRO-3 copies the gradients of one sub-group at a time to fp32") {
  Job job = job_of("deepspeed", 1);
  job.cluster.gpus_per_node = 1;
  const std::int64_t attention = 2 * 4096 * 4096 + 2 * 4096 * 1024;
  const std::int64_t ffn = std::int64_t{3} * 4096 * 14336;
  const std::int64_t layer = attention + ffn + 2 * 4096;
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, plan_with(3, DType::kBf16));
  REQUIRE(groups.size() == 8);
  CHECK(groups[0] == 128256 * std::int64_t{4096} + 2 * layer + attention);
  CHECK(groups[1] == ffn + 2 * 4096 + 3 * layer + attention + ffn);
  const MemoryEstimate memory = estimate_memory(job, plan_with(3, DType::kBf16));
  CHECK(row_bytes(memory, "step.fp32_gradients") == 4 * std::ranges::max(groups));
  CHECK(row_bytes(memory, "step.flat_gradients") == 2 * std::ranges::max(groups));
}

TEST_CASE("DeepSpeed's bucket is a setting, and overlap_comm has two under ZeRO-2") {
  const Library library;
  Job job = job_of("deepspeed", 1);
  apply_option(job.profile, "reduce_bucket_elements", "200000000", library);
  apply_option(job.profile, "overlap_comm", "on", library);
  const BlockSet blocks = block_set(job, plan_with(2, DType::kBf16));
  CHECK(block_bytes(blocks, BlockKind::kDenseLayer, "reduce_bucket") == 2 * 400'000'000);
}

// runtime/zero/config.py, overlap_comm_valid.
TEST_CASE("DeepSpeed overlaps its collectives under ZeRO-3 where nothing is said") {
  const Library library;
  const auto overlaps = [&](const char* word, std::int64_t zero) {
    Job job = job_of("deepspeed", 1);
    apply_option(job.profile, "overlap_comm", word, library);
    return overlaps_collectives(job, plan_with(zero, DType::kBf16));
  };
  CHECK(job_of("deepspeed", 1).profile.overlap_comm == OverlapComm::kDefault);
  for (const std::int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    CHECK(overlaps("default", zero) == (zero == 3));
    CHECK(overlaps("on", zero));
    CHECK(!overlaps("off", zero));
  }
}

TEST_CASE("Hugging Face's attention saves keys and values of the key and value heads only") {
  // Llama-3-8B: 32 heads of 128 for q, 8 for k, 8 for v; 1024 tokens.
  const Job job = job_of("deepspeed", 1);
  const BlockSet blocks = block_set(job, plan_with(1, DType::kBf16));
  const auto& rows = blocks[static_cast<std::size_t>(BlockKind::kDenseLayer)].rows;
  const auto saved = std::ranges::find(rows, "attention.qkv", &BlockRow::name);
  REQUIRE(saved != rows.end());
  CHECK(saved->bytes == 2 * (32 + 8 + 8) * 128 * 1024);
}

// modeling_qwen3.py, Qwen3Attention.__init__: norms of q and k behind the four projections.
TEST_CASE("Qwen3's tensors stand in the order of its modules") {
  Job job = small_job();
  job.model.qk_norm = true;
  CHECK(deepspeed_tensors(job.model) == std::vector<std::int64_t>{256'000, 65'536, 32'768, 32'768,
                                                                  65'536, 64, 64, 131'072, 131'072,
                                                                  131'072, 256, 256, 256, 256'000});
}

// Backward: head and final norm; down, up; gate, norm, o, v, norm of k; k, norm of q, q, norm; the
// table: none of these finds room for the next in a bucket of 262,400, but v and k would.
TEST_CASE("gradients of norms of heads come before those of their projections") {
  const Library library;
  Job job = small_job();
  job.model.qk_norm = true;
  apply_option(job.profile, "reduce_bucket_elements", "262400", library);
  const DeepspeedBuckets buckets = deepspeed_buckets(job, plan_with(3, DType::kBf16));
  CHECK(buckets.flat_in_layers == 131'072 + 131'072);
  CHECK(buckets.flat_at_end == 32'768 + 64 + 65'536 + 256);
}

// A head of q or k: 128 wide, twice in bf16 and 4 bytes each in fp32, and the root of its square's
// mean. At the loss every layer has them, recomputed layers none; norms' weights are 256 a layer,
// 2 + 4 + 8 bytes each.
TEST_CASE("Qwen3's norms of q and k save six bytes an element and four a head") {
  for (const bool recomputes : {false, true}) {
    CAPTURE(recomputes);
    Job job = job_of("deepspeed", 1);
    job.cluster.gpus_per_node = 1;
    job.global_batch = 1;
    job.sequence_length = 16384;
    job.model.layers.resize(4);
    Plan plan = plan_with(1, DType::kBf16);
    plan.recompute.granularity =
        recomputes ? RecomputeGranularity::kFull : RecomputeGranularity::kNone;
    plan.recompute.num_layers = 1;
    const std::int64_t without = most_alive(job, plan);
    job.model.qk_norm = true;
    const std::int64_t saved = recomputes ? 0 : (32 + 8) * (6 * 128 + 4) * 16384;
    CHECK(most_alive(job, plan) - without == 4 * (saved + 14 * 256));
  }
}

TEST_CASE("no model of nanotron norms queries and keys") {
  Job job = job_of("nanotron", 1);
  job.model.qk_norm = true;
  const auto broken = why_invalid(job, plan_with(1, DType::kFp32));
  REQUIRE(broken);
  CHECK(broken->rule == "unsupported: model.qk_norm");
  CHECK(broken->message.find("no model of nanotron") != std::string::npos);
}

TEST_CASE("nanotron keeps the whole fp32 gradient buffer under ZeRO-1, and buckets without it") {
  const Job job = job_of("nanotron", 1);
  const MemoryEstimate one = estimate_memory(job, plan_with(1, DType::kFp32));
  CHECK(row_bytes(one, "gradients.fp32_buffer") == 4 * kN);
  CHECK(row_bytes(one, "optimizer.master") == 4 * kN / 8);
  CHECK(row_bytes(one, "gradients.ddp_buckets") == 0);
  const MemoryEstimate none = estimate_memory(job, plan_with(0, DType::kFp32));
  CHECK(row_bytes(none, "optimizer.master") == 4 * kN);
  CHECK(row_bytes(none, "gradients.ddp_buckets") == 2 * kN);
}

TEST_CASE("nanotron gathers parameters through its own share, one of every rank, and a flat copy") {
  // 1024 tokens leave the gather as the peak: N/8 + 8 * N/8 + N.
  const MemoryEstimate memory = estimate_memory(job_of("nanotron", 1), plan_with(1, DType::kFp32));
  REQUIRE(memory.stages.front().peak_moment() == "parameter gather");
  std::int64_t bytes = 0;
  for (const Row& row : memory.stages.front().rows) {
    bytes += row.name.starts_with("parameter_gather.") ? row.total_bytes() : 0;
  }
  CHECK(bytes == 2 * (kN / 8 + kN + kN));
  CHECK(row_bytes(memory, "parameter_gather.shares") == 2 * (kN / 8));  // of one rank
}

// Traced: of a tied model of 16 layers, 2048 wide, the second step made buckets of 32, 64 and 32
// MiB a layer, each with a norm, and one of the table (data/measured/nanotron_ranks_h200.jsonl,
// nano-1b_tp1pp1dp8z0_s4096b1n4). Down, gate and up, then the projections of attention together.
TEST_CASE("nanotron's second step makes gradient buckets anew, in the order of gradients") {
  Job job = job_of("nanotron", 1);
  job.model.hidden = 2048;
  job.model.ffn = 8192;
  job.model.vocab = 131072;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 64;
  job.model.tied_embeddings = true;
  job.model.layers.resize(16);
  const Plan plan = plan_with(0, DType::kFp32);
  const StageLayout layout = plan_pieces(job, plan).stages.front().layout;
  const BuiltStage built = nanotron_start_up(job, plan, layout, stage_tensors(job, plan, layout));
  const std::int64_t norms = (2 * 16 + 1) * 2048 * 2;
  std::vector<std::int64_t> expected;
  for (int layer = 0; layer < 16; ++layer) {
    expected.insert(expected.end(), {32 * kMiB, 64 * kMiB, 32 * kMiB});
  }
  expected.front() += norms;  // they come first here
  expected.push_back(512 * kMiB);
  CHECK(built.rebuilt_bytes == expected);
}

TEST_CASE("nanotron deals layers by their cost, the head counting with them") {
  // 24 layers of 4*2048^2 + 3*2048*4096, a head of 50257*2048: 26.45 layers over 8 ranks.
  Job job = job_of("nanotron", 1);
  job.model.hidden = 2048;
  job.model.ffn = 4096;
  job.model.vocab = 50257;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 64;
  job.model.layers.resize(24);
  Plan plan;
  plan.pp = 8;
  plan.schedule = Schedule::k1F1B;
  CHECK(layers_per_chunk(job, plan) == std::vector<std::int64_t>{4, 3, 3, 4, 3, 3, 4, 0});
  plan.pp = 2;
  CHECK(layers_per_chunk(job, plan) == std::vector<std::int64_t>{14, 10});
}

// Later versions save the shard of each linear layer's input (h*T/2 with two ranks) and gather it
// again in a buffer of h*T that stays for good, as one of output gradients does: v0.4 has h*T/2
// more for both linear inputs of 32 layers and for the head's, no buffers, and tables in fp32 of
// every position and width of a head. Where the gather of parameters is the peak, no activation is
// alive, and only buffers and tables are left.
TEST_CASE("nanotron v0.4 saves gathered inputs, later versions keep two gather buffers") {
  Job job = job_of("nanotron", 1);
  Job old = job_of("nanotron@v0.4", 1);
  CHECK(old.profile.name == "nanotron");
  CHECK(old.profile.version == "v0.4");
  Plan plan = plan_with(1, DType::kFp32);
  plan.tp = 2;
  plan.sequence_parallel = true;
  for (const auto& [sequence, peak, saved_shards] :
       {std::tuple{1024, "parameter gather", 0}, std::tuple{16384, "loss forward", 2 * 32 + 1}}) {
    CAPTURE(sequence);
    job.sequence_length = sequence;
    old.sequence_length = sequence;
    const MemoryEstimate later = estimate_memory(job, plan);
    const MemoryEstimate before = estimate_memory(old, plan);
    CHECK(before.stages.front().peak_moment() == std::string_view(peak));
    CHECK(later.stages.front().peak_moment() == std::string_view(peak));
    const std::int64_t gathered = std::int64_t{2} * 4096 * sequence;
    const std::int64_t tables = std::int64_t{32} * 4 * sequence * 128;
    CHECK(before.stages.front().allocated_bytes - later.stages.front().allocated_bytes ==
          saved_shards * gathered / 2 + tables - 2 * gathered);
  }
}

// parallel/tensor_parallel/functional.py: F.linear saves the contiguous copy of attention's answer,
// 2 * 4096 bytes a token and layer; _RowLinearAsyncCommunication the view that it was copied from.
TEST_CASE(
    "nanotron keeps a copy of attention's answer for several sequences, unless tp scatters it") {
  for (const std::int64_t tp : {1, 2}) {
    Job job = job_of("nanotron", 1);
    Plan plan = plan_with(1, DType::kFp32);
    plan.tp = tp;
    plan.sequence_parallel = tp > 1;
    job.sequence_length = 16384;
    job.global_batch = 64;
    const std::int64_t one = estimate_memory(job, plan).stages.front().allocated_bytes;
    job.sequence_length = 8192;
    plan.micro_batch = 2;
    const std::int64_t two = estimate_memory(job, plan).stages.front().allocated_bytes;
    const std::int64_t copies = tp == 1 ? std::int64_t{32} * 2 * 4096 * 16384 : 0;
    const std::int64_t tables = std::int64_t{32} * 2 * 128 * 8192;  // of half the positions
    CHECK(std::abs(two - one - (copies - tables)) <= kMiB);
  }
}

TEST_CASE("a stage without a layer has a state of nothing and no peak in an action") {
  Job job = job_of("megatron", 8);
  Plan plan;
  plan.pp = 8;
  plan.zero = 1;
  plan.schedule = Schedule::k1F1B;
  plan.layers_per_chunk = {8, 8, 8, 8, 0, 0, 0, 0};
  REQUIRE_FALSE(why_invalid(job, plan));
  const MemoryEstimate memory = estimate_memory(job, plan);
  CHECK(memory.stages[5].num_layers == 0);
  CHECK(memory.stages[5].allocated_bytes < memory.stages[3].allocated_bytes);
}

}  // namespace shardplan
