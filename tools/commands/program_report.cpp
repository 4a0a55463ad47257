#include "tools/commands/program_report.h"

#include <algorithm>
#include <map>

#include "data/read/input_error.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"
#include "tools/report/text.h"
#include "validator/lower/lower.h"

namespace shardplan {
namespace {

// Names in the order of the table, and the number of each tensor's name.
struct NamedTensors {
  std::vector<std::string> names;
  std::vector<Component> components;
  std::vector<std::size_t> number;  // by tensor
};

NamedTensors named_tensors(const Program& program) {
  NamedTensors named;
  std::map<std::string, std::size_t> numbers;
  for (const Tensor& tensor : program.tensors) {
    const auto [entry, is_new] = numbers.try_emplace(tensor.name, named.names.size());
    if (is_new) {
      named.names.push_back(tensor.name);
      named.components.push_back(tensor.component);
    }
    named.number.push_back(entry->second);
  }
  return named;
}

// Calls visit(operation, bytes alive by the number of a name) for every operation in order.
template <class Visit>
void visit_memory(const Program& program, const NamedTensors& named, const Visit& visit) {
  const std::size_t count = program.operations.size();
  std::vector<std::vector<std::size_t>> born(count);
  std::vector<std::vector<std::size_t>> dies(count);
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    born[static_cast<std::size_t>(program.tensors[t].born)].push_back(t);
    dies[static_cast<std::size_t>(program.tensors[t].dies)].push_back(t);
  }
  std::vector<std::int64_t> bytes(named.names.size(), 0);
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::size_t t : born[i]) { bytes[named.number[t]] += program.tensors[t].bytes; }
    visit(i, bytes);
    for (const std::size_t t : dies[i]) { bytes[named.number[t]] -= program.tensors[t].bytes; }
  }
}

Cell index_cell(std::int64_t index) {
  return index < 0 ? Cell{} : Cell{index};
}

}  // namespace

Question with_few_microbatches(const Question& question, const std::string& option) {
  constexpr std::int64_t kMost = 64;
  const Plan& plan = question.plan;
  // Two rounds of the pipeline's chunks fill and empty it, two more are between.
  const std::int64_t most = round_up(kMost, 4 * plan.pp * plan.vpp);
  const std::int64_t all = num_microbatches(question.job, plan);
  if (all > most && plan.schedule == Schedule::kGpipe) {
    throw InputError("--" + option + ": found " + grouped(all) +
                     " microbatches under schedule gpipe, expected at most " + grouped(most));
  }
  Question few = question;
  few.job.global_batch =
      std::min(all, most) * plan.micro_batch * data_parallel_size(question.job, plan);
  return few;
}

Program program_of(const Question& question, const Prediction& prediction,
                   const std::string& option) {
  const Job& job = question.job;
  if (job.profile.memory_model != MemoryModel::kNative) {
    throw InputError("--" + option + ": found framework " + job.profile.name +
                     ", expected native: other frameworks have no program");
  }
  if (const auto reason = why_not_lowered(job, question.plan)) {
    throw InputError("--" + option + ": found " + *reason +
                     ", which the trainer does not run yet, so that there is no program");
  }
  const RankCoordinates at{.pp = prediction.memory.worst_stage};
  return lower(job, question.plan, rank_of(job, question.plan, at), {});
}

std::string program_text(const StageMemory& stage, const Program& program) {
  const std::vector<std::int64_t> live = live_bytes(program);
  const auto peak = std::ranges::max_element(live);
  const NamedTensors named = named_tensors(program);
  std::map<std::string, std::int64_t> estimated;
  for (const Row& row : stage.rows) { estimated[row.name] += row.total_bytes(); }
  // Several operations may hold as much; the one that the estimate names, if it is among them.
  std::vector<std::int64_t> at_peak;
  std::vector<std::int64_t> most(named.names.size(), 0);
  std::size_t operation = 0;
  bool is_estimated = false;
  visit_memory(program, named, [&](std::size_t i, const std::vector<std::int64_t>& bytes) {
    for (std::size_t n = 0; n < bytes.size(); ++n) { most[n] = std::max(most[n], bytes[n]); }
    if (live[i] != *peak || is_estimated) {
      return;
    }
    bool is_same = true;
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      is_same = is_same && estimated[named.names[n]] == bytes[n];
    }
    if (at_peak.empty() || is_same) {
      at_peak = bytes;
      operation = i;
      is_estimated = is_same;
    }
  });
  Table table = {.columns = {"component", "tensor", "estimate", "program", "program, at most"}};
  for (std::size_t n = 0; n < named.names.size(); ++n) {
    table.rows.push_back({std::string(name_of(named.components[n])), named.names[n],
                          grouped(estimated[named.names[n]]), grouped(at_peak[n]),
                          grouped(most[n])});
  }
  return "\nProgram of rank " + std::to_string(program.rank) + " (stage " +
         std::to_string(stage.pp_rank) + "): " + grouped(std::ssize(program.operations)) +
         " operations; the most is alive at number " + std::to_string(operation) + ", " +
         program.operations[operation].label + ": " + grouped(*peak) +
         " bytes; arenas: persistent " + grouped(program.persistent_bytes) + ", dynamic " +
         grouped(program.dynamic_bytes) + " bytes\n" + table_text(table);
}

Table memory_timeline(const Program& program) {
  const NamedTensors named = named_tensors(program);
  Table table = {
      .columns = {"operation", "label", "stream", "chunk", "microbatch", "layer", "total_bytes"}};
  table.columns.insert(table.columns.end(), named.names.begin(), named.names.end());
  visit_memory(program, named, [&](std::size_t i, const std::vector<std::int64_t>& bytes) {
    const Operation& op = program.operations[i];
    std::int64_t total = 0;
    for (const std::int64_t some : bytes) { total += some; }
    std::vector<Cell> row = {static_cast<std::int64_t>(i),
                             op.label,
                             std::string(name_of(op.stream)),
                             index_cell(op.chunk),
                             index_cell(op.microbatch),
                             index_cell(op.layer),
                             total};
    row.insert(row.end(), bytes.begin(), bytes.end());
    table.rows.push_back(std::move(row));
  });
  return table;
}

}  // namespace shardplan
