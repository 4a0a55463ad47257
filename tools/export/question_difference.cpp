#include "tools/export/question_difference.h"

#include <functional>
#include <utility>
#include <vector>

#include "data/frameworks/profile_fields.h"
#include "data/read/json_message.h"
#include "estimator/plan/parameters.h"
#include "tools/export/read_back.h"
#include "tools/options/plan_words.h"

namespace shardplan {
namespace {

struct FieldDifference {
  std::string text;
  std::function<void(Question&)> apply;  // gives the other question's value to one
};
using Differences = std::vector<FieldDifference>;

template <class Value, class Text>
void add(Differences& differences, std::string_view name, Value Plan::*field, const Question& asked,
         const Question& read, const Text& text_of) {
  if (!(asked.plan.*field == read.plan.*field)) {
    differences.push_back({.text = std::string(name) + " " + text_of(read.plan.*field) + " -> " +
                                   text_of(asked.plan.*field),
                           .apply = [field, value = asked.plan.*field](Question& question) {
                             question.plan.*field = value;
                           }});
  }
}

template <class Value, class Text>
void add(Differences& differences, std::string_view name, Value Job::*field, const Question& asked,
         const Question& read, const Text& text_of) {
  if (!(asked.job.*field == read.job.*field)) {
    differences.push_back({.text = std::string(name) + " " + text_of(read.job.*field) + " -> " +
                                   text_of(asked.job.*field),
                           .apply = [field, value = asked.job.*field](Question& question) {
                             question.job.*field = value;
                           }});
  }
}

std::string chunks_text(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (const std::int64_t count : layers) {
    text += (text.empty() ? "" : ",") + std::to_string(count);
  }
  return text.empty() ? "even" : text;
}

std::string offload_text(const Offload& offload) {
  return exact_text(offload.optimizer) + (offload.parameters ? " with parameters" : "");
}

void add_plan(Differences& differences, const Question& asked, const Question& read) {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  const auto named = [](auto value) { return std::string(name_of(value)); };
  for (const PlanSize& size : kPlanSizes) {
    if (size.name != "dp") {  // what the other sizes leave
      add(differences, size.name, size.field, asked, read, number);
    }
  }
  add(differences, "sequence_parallel", &Plan::sequence_parallel, asked, read,
      [](bool is_on) { return std::string(is_on ? "on" : "off"); });
  add(differences, "schedule", &Plan::schedule, asked, read, named);
  add(differences, "layers_per_chunk", &Plan::layers_per_chunk, asked, read, chunks_text);
  add(differences, "cp_method", &Plan::cp_method, asked, read, named);
  add(differences, "recompute", &Plan::recompute, asked, read, recompute_text);
  add(differences, "rank_order", &Plan::rank_order, asked, read, dimensions_text);
  add(differences, "precision", &Plan::precision, asked, read, named);
  add(differences, "offload", &Plan::offload, asked, read, offload_text);
  for (const auto& [name, field] :
       {std::pair{"grad_dtype", &Plan::grad_dtype}, std::pair{"master_dtype", &Plan::master_dtype},
        std::pair{"exp_avg_dtype", &Plan::exp_avg_dtype},
        std::pair{"exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype}}) {
    add(differences, name, field, asked, read, named);
  }
}

void add_job(Differences& differences, const Question& asked, const Question& read) {
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  add(differences, "sequence_length", &Job::sequence_length, asked, read, number);
  add(differences, "global_batch", &Job::global_batch, asked, read, number);
  add(differences, "optimizer", &Job::optimizer, asked, read,
      [](OptimizerKind kind) { return std::string(name_of(kind)); });
  add(differences, "hidden_dropout", &Job::hidden_dropout, asked, read, exact_text);
  add(differences, "attention_dropout", &Job::attention_dropout, asked, read, exact_text);
}

void add_profile(Differences& differences, const Question& asked, const Question& read) {
  for (const std::string& name : profile_field_names()) {
    const std::string from = profile_field_text(read.job.profile, name);
    const std::string to = profile_field_text(asked.job.profile, name);
    if (from == to) {
      continue;
    }
    const std::string json = profile_field_type(name) == "choice" ? '"' + to + '"' : to;
    differences.push_back(
        {.text = name + " " + from + " -> " + to, .apply = [name, json](Question& question) {
           set_profile_field(question.job.profile, name, parse_json(json, name));
         }});
  }
}

void add_model(Differences& differences, const Question& asked, const Question& read) {
  const std::int64_t from = count_parameters(read.job.model);
  const std::int64_t to = count_parameters(asked.job.model);
  if (from != to) {
    differences.push_back(
        {.text = "parameters of " + asked.job.model.name + " " + std::to_string(from) + " -> " +
                 std::to_string(to),
         .apply = [model = asked.job.model](Question& question) { question.job.model = model; }});
  }
}

}  // namespace

std::string question_difference(const Question& asked, const Question& read) {
  Differences differences;
  add_model(differences, asked, read);
  add_job(differences, asked, read);
  add_plan(differences, asked, read);
  add_profile(differences, asked, read);
  const std::string own = prediction_text(predict(read.job, read.plan, {}));
  std::string all;
  std::string decisive;
  for (const FieldDifference& difference : differences) {
    Question changed = read;
    difference.apply(changed);
    all += (all.empty() ? "" : ", ") + difference.text;
    if (prediction_text(predict(changed.job, changed.plan, {})) != own) {
      decisive += (decisive.empty() ? "" : ", ") + difference.text;
    }
  }
  return !decisive.empty() ? decisive : !all.empty() ? all : "layers of " + asked.job.model.name;
}

}  // namespace shardplan
