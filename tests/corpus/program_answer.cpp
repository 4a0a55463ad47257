// Programs of native plans as text: every field of every tensor and operation.
#include <algorithm>
#include <cstdint>

#include "estimator/answer/why_invalid.h"
#include "estimator/plan/rank_grid.h"
#include "tests/corpus/answer_text.h"
#include "tests/corpus/answers.h"
#include "validator/lower/lower.h"
#include "validator/program/program.h"
#include "validator/supervise/outcome.h"

namespace shardplan {
namespace {

void add_view(AnswerText& text, const View& view) {
  text.add("(").add(view.tensor).add(view.offset).add(view.rows).add(view.cols);
  text.add(view.stride).add(")");
}

void add_range(AnswerText& text, std::string_view name, const ParameterRange& range) {
  text.add(name).add(range.tensor).add(range.offset).add(range.begin).add(range.end);
}

void add_attributes(AnswerText& text, const OpAttributes& a) {
  text.add(a.value).add(a.epsilon).add(a.accumulate).add(a.transpose_a).add(a.transpose_b);
  text.add(a.fp8 ? 1 + static_cast<int>(a.fp8->a) : 0);
  text.add(a.fp8 ? 1 + static_cast<int>(a.fp8->b) : 0);
  text.add(a.fp8_keeps).add(static_cast<int>(a.fp8_finds)).add(a.inverse).add(a.theta);
  text.add(a.batch).add(a.position_gap).add(a.heads).add(a.kv_heads).add(a.head_dim);
  text.add(a.query_position).add(a.key_position).add(a.window).add(a.repeatable);
  text.add(a.first_row).add(a.sequence_rows).add(a.chooses_in_turn).add(a.experts);
  text.add(a.copies).add(a.member).add(a.capacity).add(a.vocab).add(a.peer).add(a.tag);
  text.add(a.beta1).add(a.beta2).add(a.weight_decay);
}

void add_tensors(AnswerText& text, const Program& program) {
  for (const Tensor& tensor : program.tensors) {
    text.add("tensor").add(name_of(tensor.component)).add(tensor.name).add(name_of(tensor.dtype));
    text.add(tensor.rows).add(tensor.cols).add(tensor.bytes);
    text.add(static_cast<int>(tensor.arena)).add(static_cast<int>(tensor.placement));
    text.add(tensor.offset).add(tensor.born).add(tensor.dies);
    text.end_line();
  }
}

void add_operations(AnswerText& text, const Program& program) {
  for (const Operation& op : program.operations) {
    text.add(name_of(op.kind)).add(op.label).add(name_of(op.stream)).add("in");
    for (const View& view : op.in) { add_view(text, view); }
    text.add("out");
    for (const View& view : op.out) { add_view(text, view); }
    add_attributes(text, op.attributes);
    text.add("group", op.group).add("waits", op.waits).add("records", op.records);
    text.add("chunk", op.chunk).add("microbatch", op.microbatch).add("layer", op.layer);
    text.end_line();
  }
}

void add_parameters(AnswerText& text, const Program& program) {
  for (const ParameterPart& part : program.parameters) {
    text.add("parameter").add(part.logical).add(part.rows).add(part.cols);
    text.add(part.first_row).add(part.first_col).add(part.transposed);
    add_range(text, "weight", part.weight);
    add_range(text, "master", part.master);
    add_range(text, "gradient", part.gradient);
    text.end_line();
  }
}

void add_program(AnswerText& text, const Program& program) {
  text.add("rank", program.rank).add("events", program.num_events);
  text.add("persistent", program.persistent_bytes).add("dynamic", program.dynamic_bytes);
  text.add("schedule", program.schedule_tensor).add("clip", program.clip);
  text.add("loss", program.loss).add("aux_loss", program.aux_loss);
  text.add("experts").add(program.expert_bound.required).add(program.expert_bound.rows);
  text.add(program.expert_bound.even_rows).add("launches", program.launches);
  text.end_line();
  for (const Group& group : program.groups) {
    text.add("group").add(name_of(group.kind)).add(group.ranks);
    text.end_line();
  }
  for (const CutPoint& cut : program.cuts) {
    text.add("cut").add(cut.operation).add(cut.label);
    text.end_line();
  }
  for (const MicrobatchInputs& input : program.inputs) {
    text.add("input").add(input.ids).add(input.targets).add(input.first_sequence);
    text.end_line();
  }
  for (const TokenRun& run : program.token_order) {
    text.add("tokens").add(run.sequence).add(run.first_position).add(run.count);
    text.end_line();
  }
  add_parameters(text, program);
  add_tensors(text, program);
  add_operations(text, program);
}

// With no more microbatches than fill the pipeline twice, where the plan stays valid so.
Job with_few_microbatches(const Job& job, const Plan& plan) {
  Job few = job;
  const std::int64_t microbatches = std::min(num_microbatches(job, plan), 2 * plan.pp * plan.vpp);
  few.global_batch = microbatches * plan.micro_batch * data_parallel_size(job, plan);
  return why_invalid(few, plan) ? job : few;
}

}  // namespace

std::string program_answer(const Job& job, const Plan& plan) {
  AnswerText text;
  if (const auto reason = why_not_lowered(job, plan)) {
    text.add("not lowered:").add(*reason);
    return text.text();
  }
  const Job few = with_few_microbatches(job, plan);
  const std::int64_t last = job.cluster.world_size() - 1;
  add_program(text, lower(few, plan, 0, {}));
  if (last > 0) {
    add_program(text, lower(few, plan, last, {}));
  }
  return text.text();
}

}  // namespace shardplan
