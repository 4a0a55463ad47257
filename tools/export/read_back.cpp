#include "tools/export/read_back.h"

#include <algorithm>

#include "data/frameworks/profile_fields.h"
#include "data/read/json_message.h"
#include "estimator/plan/parameters.h"
#include "tools/commands/advise.h"
#include "tools/options/plan_words.h"
#include "tools/report/json.h"

namespace shardplan {
namespace {

std::string framework_text(const Job& job) {
  return job.profile.name + " " + job.profile.version;
}

InputError cannot_express(const Job& job, const std::string& what) {
  return InputError("--export: " + framework_text(job) + " cannot express this plan: " + what +
                    "; nothing is written");
}

// A message about a file that will not be there, without its folder.
std::string without_folder(std::string message, const std::string& file) {
  const std::string folder = file.substr(0, file.rfind('/') + 1);
  for (std::size_t at = message.find(folder); at != std::string::npos; at = message.find(folder)) {
    message.erase(at, folder.size());
  }
  return message;
}

// What the reader finds that the framework would not start with is why it cannot express the plan.
Question question_read(const ExportRequest& request, const Options& options,
                       const std::string& file, const std::vector<std::string>& facts) {
  try {
    return question_of_files(options, request.library, file, facts);
  } catch (const InputError& refusal) {
    throw cannot_express(request.job(), without_folder(refusal.what(), file));
  }
}

// Fields of the job, the plan and the profile in which two questions differ, as messages name them;
// those without effect on a prediction may be among them.
std::string differing_fields(const Question& asked, const Question& read) {
  std::string text = difference_text(read.job, read.plan, asked.job, asked.plan);
  const auto add = [&text](const std::string& name, const std::string& from,
                           const std::string& to) {
    if (from != to) {
      text += (text.empty() ? "" : ", ") + name + " " + from + " -> " + to;
    }
  };
  add("precision", std::string(name_of(read.plan.precision)),
      std::string(name_of(asked.plan.precision)));
  add("master_dtype", std::string(name_of(read.plan.master_dtype)),
      std::string(name_of(asked.plan.master_dtype)));
  add("rank_order", dimensions_text(read.plan.rank_order), dimensions_text(asked.plan.rank_order));
  add("optimizer", std::string(name_of(read.job.optimizer)),
      std::string(name_of(asked.job.optimizer)));
  add("sequence_length", std::to_string(read.job.sequence_length),
      std::to_string(asked.job.sequence_length));
  add("global_batch", std::to_string(read.job.global_batch),
      std::to_string(asked.job.global_batch));
  add("hidden_dropout", exact_text(read.job.hidden_dropout), exact_text(asked.job.hidden_dropout));
  add("attention_dropout", exact_text(read.job.attention_dropout),
      exact_text(asked.job.attention_dropout));
  add("parameters of " + asked.job.model.name, std::to_string(count_parameters(read.job.model)),
      std::to_string(count_parameters(asked.job.model)));
  return text.empty() ? "layers of " + asked.job.model.name : text;
}

}  // namespace

Question question_of_files(const Options& options, const Library& library, const std::string& file,
                           const std::vector<std::string>& facts) {
  Options read;
  read.command = "estimate";
  for (const char* const kept : {"cluster", "num-gpus", "gpu-memory", "data"}) {
    if (given(options, kept)) {
      read.values[kept] = options.values.at(kept);
    }
  }
  read.values["from"] = {file};
  if (!facts.empty()) {
    read.values["framework-option"] = facts;
  }
  return question_of(read, library);
}

std::string prediction_text(const Prediction& prediction, const Plan& plan) {
  BatchAnswer answer;
  answer.precision = plan.precision;
  answer.prediction = prediction;
  return batch_json(answer);
}

void require_read_back(const ExportRequest& request, const Options& options,
                       const std::string& file, const std::vector<std::string>& facts) {
  const Question read = question_read(request, options, file, facts);
  const RunReading& reading = read.run.value().reading;
  if (!reading.unsupported.empty()) {
    throw cannot_express(request.job(), reading.unsupported);
  }
  for (const SettingUse& use : reading.uses) {
    if (use.effect == SettingEffect::kUnknown) {
      throw std::logic_error("an exported setting is in no table: " + use.name);
    }
  }
  const Prediction prediction = predict(read.job, read.plan, {});
  const Prediction asked = predict(request.job(), request.plan(), {});
  if (prediction_text(prediction, read.plan) != prediction_text(asked, request.plan())) {
    throw cannot_express(request.job(), "from what its files mean to what is asked, " +
                                            differing_fields(request.question, read));
  }
}

}  // namespace shardplan
