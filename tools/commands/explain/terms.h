// The words that answers are written in.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tools/options/question.h"

namespace shardplan {

// The plan whose numbers stand beside a formula.
struct ExplainedJob {
  const Question& question;
  const Prediction& prediction;

  const Plan& plan() const { return question.plan; }
  const Job& job() const { return question.job; }
  std::int64_t dp() const { return data_parallel_size(question.job, question.plan); }
  std::int64_t num_microbatches() const {
    return question.job.global_batch / (question.plan.micro_batch * dp());
  }
  const StageMemory& stage() const {  // the fullest
    return prediction.memory.stages[static_cast<std::size_t>(prediction.memory.worst_stage)];
  }
};

struct Term {
  std::string_view name;          // as options, tables or JSON have it
  std::string_view others;        // further names, between spaces
  std::string_view meaning;       // sentences
  std::string_view formula = {};  // with its letters; may be empty
  std::string (*numbers)(const ExplainedJob& job) = nullptr;
  std::string_view example = {};  // a command, without the program's name
};

std::span<const Term> terms_of_memory();   // what a GPU holds
std::span<const Term> terms_of_plans();    // how a model is divided
std::span<const Term> terms_of_answers();  // what else answers say

}  // namespace shardplan
