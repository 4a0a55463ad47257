#include "estimator/step_time.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "estimator/block_work.h"
#include "estimator/collective_time.h"
#include "estimator/estimate.h"
#include "estimator/layer_partition.h"
#include "estimator/pipeline_time.h"
#include "estimator/sharding_time.h"

namespace shardplan {
namespace {

double number(std::int64_t count) {
  return static_cast<double>(count);
}

// One microbatch in one chunk, or summed over the chunks of one rank. recompute_s is what the plan
// replays, sends_s the exposed sends of activations and of gradients.
struct Work {
  BlockTime blocks;
  double forward_send_s = 0;
  double backward_send_s = 0;

  ChunkTime chunk_time() const {
    return {.forward_s = blocks.forward_total_s() + blocks.host_s / 2 + forward_send_s,
            .backward_input_s = blocks.backward_total_s() - blocks.backward_weight_s +
                                blocks.recompute_s + blocks.host_s / 2 + backward_send_s,
            .backward_weight_s = blocks.backward_weight_s};
  }
};

// Full recomputation by blocks replays the first num_layers of a chunk; every other choice is
// already in the layers' times.
std::int64_t replayed_layers(const Recompute& recompute, std::int64_t layers) {
  const bool by_blocks = recompute.granularity == RecomputeGranularity::kFull &&
                         recompute.method == RecomputeMethod::kBlock;
  return by_blocks ? std::min(recompute.num_layers, layers) : layers;
}

// The send of one hidden tensor to the next stage, as far as it stays visible.
double exposed_send_s(const Job& job, const Plan& plan) {
  if (plan.pp == 1) {
    return 0;
  }
  const double element_bytes = plan.precision == Precision::kFp32 ? 4 : 2;
  const double sharded_over = plan.sequence_parallel ? number(plan.tp) : 1;
  const double bytes =
      number(tokens_per_microbatch(job, plan) * job.model.hidden) * element_bytes / sharded_over;
  return send_s(job.cluster, group_shape(job, plan, GroupKind::kPp), bytes) *
         job.profile.exposed_pp_share;
}

// Tied tables, and tables that multi-token prediction reads, have a copy beside the head.
bool has_second_table(const ModelSpec& model) {
  return model.tied_embeddings || model.num_mtp_layers > 0;
}

// Layers first .. first + count, equal neighbours together.
void add_layers(BlockTime& blocks, const ModelTimes& times, std::int64_t first,
                std::int64_t count) {
  std::int64_t layer = first;
  while (layer < first + count) {
    const std::size_t kind = times.kinds[static_cast<std::size_t>(layer)];
    std::int64_t next = layer + 1;
    while (next < first + count && times.kinds[static_cast<std::size_t>(next)] == kind) { ++next; }
    add(blocks, times.layers[kind].time, next - layer);
    layer = next;
  }
}

std::vector<Work> chunk_works(const Job& job, const Plan& plan, const ModelTimes& times) {
  const std::vector<std::int64_t> layers = layers_per_chunk(job, plan);
  if (layers.empty()) {
    throw std::logic_error("step_time_of: the layers do not fill the chunks");
  }
  const double send_s = exposed_send_s(job, plan);
  const std::size_t last = layers.size() - 1;
  std::vector<Work> works(layers.size());
  std::int64_t first = 0;
  for (std::size_t position = 0; position <= last; ++position) {
    Work& work = works[position];
    const std::int64_t replayed = replayed_layers(plan.recompute, layers[position]);
    add_layers(work.blocks, times, first, replayed);
    const double recompute_s = work.blocks.recompute_s;
    add_layers(work.blocks, times, first + replayed, layers[position] - replayed);
    work.blocks.recompute_s = recompute_s;
    work.forward_send_s = position < last ? send_s : 0;
    work.backward_send_s = position > 0 ? send_s : 0;
    first += layers[position];
  }
  add(works.front().blocks, times.embedding);
  add(works.back().blocks, times.head);
  add(works.back().blocks, times.mtp, job.model.num_mtp_layers);
  return works;
}

Work rank_work(const ScheduleShape& shape, const std::vector<Work>& works, std::int64_t rank) {
  Work sum;
  for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) {
    const Work& work = works[static_cast<std::size_t>(position_of(shape, rank, chunk))];
    add(sum.blocks, work.blocks);
    sum.forward_send_s += work.forward_send_s;
    sum.backward_send_s += work.backward_send_s;
  }
  return sum;
}

struct AfterPipeline {
  double data_parallel_s = 0;
  double optimizer_s = 0;
  double total_s() const { return data_parallel_s + optimizer_s; }
};

AfterPipeline after_pipeline(const Job& job, const Plan& plan, const ShardingGroups& groups,
                             const ScheduleShape& shape, const ModelTimes& times,
                             const std::vector<Work>& works, std::int64_t rank) {
  const Work work = rank_work(shape, works, rank);
  const bool holds_embedding = rank == rank_of_position(shape, 0);
  const bool holds_head = rank == rank_of_position(shape, shape.pp * shape.vpp - 1);
  const bool ends_apart = has_second_table(job.model) && holds_embedding != holds_head;
  const std::int64_t table = times.embedding.parameters.dense;
  LocalParameters parameters = work.blocks.parameters;
  parameters.dense += ends_apart && holds_head ? table : 0;
  const ChunkTime time = work.chunk_time();
  const double data_parallel_s =
      exposed_data_parallel_s(job, plan, groups,
                              {.parameters = parameters,
                               .tied_elements = ends_apart ? table : 0,
                               .forward_s = time.forward_s,
                               .backward_s = time.backward_input_s + time.backward_weight_s});
  return {.data_parallel_s = data_parallel_s,
          .optimizer_s = optimizer_s(job, plan, groups, parameters)};
}

// The stages step together: the slowest of the ranks with the ends of the model and the critical
// one decides.
AfterPipeline slowest_after_pipeline(const Job& job, const Plan& plan, const ScheduleShape& shape,
                                     const ModelTimes& times, const std::vector<Work>& works,
                                     std::int64_t critical_rank) {
  const ShardingGroups groups(job, plan);
  AfterPipeline slowest;
  std::int64_t tried = -1;
  for (const std::int64_t rank : {std::int64_t{0}, critical_rank, shape.pp - 1}) {
    if (rank == tried) {
      continue;
    }
    tried = rank;
    const AfterPipeline after = after_pipeline(job, plan, groups, shape, times, works, rank);
    slowest = after.total_s() > slowest.total_s() ? after : slowest;
  }
  return slowest;
}

void finish(StepTime& step, const Job& job, const Plan& plan, const ModelTimes& times) {
  step.total_s = step.compute_s + step.recompute_s + step.exposed_tp_s + step.exposed_cp_s +
                 step.exposed_ep_s + step.exposed_pp_s + step.exposed_dp_s + step.bubble_s +
                 step.optimizer_s + step.host_s;
  step.tokens_per_s_per_gpu = number(job.global_batch * job.sequence_length) / step.total_s /
                              number(job.cluster.world_size());
  step.model_flops_per_token = times.flops_per_token;
  step.mfu = step.model_flops_per_token * step.tokens_per_s_per_gpu /
             peak_flops_per_s(job.cluster.gpu, plan.precision);
  step.calibrated = is_calibrated(job.cluster.gpu);
}

}  // namespace

StepTime step_time_of(const Job& job, const Plan& plan, const ModelTimes& times) {
  const ScheduleShape shape = schedule_shape(job, plan);
  const std::vector<Work> works = chunk_works(job, plan, times);
  std::vector<ChunkTime> chunks;
  chunks.reserve(works.size());
  for (const Work& work : works) { chunks.push_back(work.chunk_time()); }
  const PipelineTime pipeline = pipeline_time(shape, chunks);
  const Work work = rank_work(shape, works, pipeline.critical_rank);
  const AfterPipeline after =
      slowest_after_pipeline(job, plan, shape, times, works, pipeline.critical_rank);
  const double m = number(shape.num_microbatches);
  const BlockTime& blocks = work.blocks;
  StepTime step;
  step.compute_s = m * (blocks.forward_s + blocks.backward_input_s + blocks.backward_weight_s);
  step.recompute_s = m * blocks.recompute_s;
  step.exposed_tp_s = m * (blocks.forward_tp_s + blocks.backward_tp_s);
  step.exposed_cp_s = m * (blocks.forward_cp_s + blocks.backward_cp_s);
  step.exposed_ep_s = m * (blocks.forward_ep_s + blocks.backward_ep_s);
  step.exposed_pp_s = m * (work.forward_send_s + work.backward_send_s);
  step.exposed_dp_s = after.data_parallel_s;
  step.bubble_s = std::max(0.0, pipeline.total_s - m * work.chunk_time().total_s());
  step.optimizer_s = after.optimizer_s;
  step.host_s = m * blocks.host_s;
  finish(step, job, plan, times);
  return step;
}

StepTime estimate_step_time(const Job& job, const Plan& plan) {
  return step_time_of(job, plan, model_times(job, plan));
}

}  // namespace shardplan
