#include "tools/export/read_back.h"

#include <algorithm>

#include "tools/export/question_difference.h"
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
Question question_read(const ExportRequest& request, const Options& beside, const std::string& file,
                       const std::vector<std::string>& facts) {
  try {
    return question_of_files(beside, request.library, file, facts);
  } catch (const InputError& refusal) {
    throw cannot_express(request.job(), without_folder(refusal.what(), file));
  }
}

// What a user's file says in words that no table has stays in it.
bool is_users_own(const ExportRequest& request, const std::string& name) {
  const std::optional<GivenRun>& run = request.question.run;
  return run &&
         std::ranges::find(run->reading.uses, name, &SettingUse::name) != run->reading.uses.end();
}

}  // namespace

Options options_beside_files(const Options& options) {
  Options beside;
  for (const char* const kept : {"cluster", "gpu", "num-gpus", "gpu-memory", "data"}) {
    if (given(options, kept)) {
      beside.values[kept] = options.values.at(kept);
    }
  }
  return beside;
}

Question question_of_files(const Options& beside, const Library& library, const std::string& file,
                           const std::vector<std::string>& facts) {
  Options read = beside;
  read.command = "estimate";
  read.values["from"] = {file};
  if (!facts.empty()) {
    read.values["framework-option"] = facts;
  }
  return question_of(read, library);
}

std::string prediction_text(const Prediction& prediction) {
  BatchAnswer answer;
  answer.prediction = prediction;
  return batch_json(answer);
}

void require_read_back(const ExportRequest& request, const Options& beside, const std::string& file,
                       const std::vector<std::string>& facts) {
  const Question read = question_read(request, beside, file, facts);
  const RunReading& reading = read.run.value().reading;
  if (!reading.unsupported.empty()) {
    throw cannot_express(request.job(), reading.unsupported);
  }
  for (const SettingUse& use : reading.uses) {
    if (use.effect == SettingEffect::kUnknown && !is_users_own(request, use.name)) {
      throw std::logic_error("an exported setting is in no table: " + use.name);
    }
  }
  const Prediction prediction = predict(read.job, read.plan, {});
  const Prediction asked = predict(request.job(), request.plan(), {});
  if (prediction_text(prediction) != prediction_text(asked)) {
    throw cannot_express(request.job(), "from what its files mean to what is asked, " +
                                            question_difference(request.question, read));
  }
}

}  // namespace shardplan
