#include "tools/report/lines.h"

#include "data/read/case_tuning.h"
#include "estimator/estimate.h"
#include "estimator/plan/parameters.h"
#include "tools/report/text.h"
#include "tools/screen/job.h"

namespace shardplan {
namespace {

// Where a domain spans nodes.
std::string domain_words(const ClusterSpec& cluster) {
  const std::int64_t domain = cluster.gpus_per_domain();
  return domain > cluster.gpus_per_node ? ", NVLink domains of " + grouped(domain) : "";
}

std::string model_words(const ModelSpec& model) {
  if (model.vocab == 0) {
    return model.name + ", of a vocabulary that is not known";
  }
  std::string text = model.name + ", derived " + grouped(count_parameters(model)) + " parameters";
  if (count_active_parameters(model) != count_parameters(model)) {
    text += " (" + grouped(count_active_parameters(model)) + " active)";
  }
  if (count_mtp_parameters(model) > 0) {
    text += " + " + grouped(count_mtp_parameters(model)) + " of prediction modules";
  }
  return text;
}

// Nothing where all parameters are trained, as they are.
std::string tuning_lines(const Job& job) {
  const std::string adapters = text_of(job.adapters);
  const std::string quantized = text_of(job.quantized);
  const std::string names = text_of(job.name_rules);
  return (names.empty() ? "" : label_line("parameters", names)) +
         (adapters.empty() ? "" : label_line("adapters", adapters)) +
         (quantized.empty() ? "" : label_line("frozen in", quantized));
}

}  // namespace

std::string label_line(std::string_view label, const std::string& text) {
  return padded_right(label, 13) + text + "\n";
}

std::string job_lines(const Job& job) {
  return label_line("model", model_words(job.model)) +
         label_line("cluster", job.cluster.name + ": " + grouped(job.cluster.world_size()) + " x " +
                                   job.cluster.gpu.id + ", " +
                                   gib(device_capacity_bytes(job.cluster)) + " GiB each" +
                                   domain_words(job.cluster)) +
         label_line("network", network_words(job.cluster)) +
         label_line("framework", job.profile.name + " " + job.profile.version) + tuning_lines(job);
}

std::string batch_line(const Job& job, const Plan& plan) {
  const std::int64_t microbatches = num_microbatches(job, plan);
  return label_line("batch", grouped(job.global_batch) +
                                 (job.global_batch == 1 ? " sequence of " : " sequences of ") +
                                 grouped(job.sequence_length) + " tokens per step, " +
                                 grouped(microbatches) +
                                 (microbatches == 1 ? " microbatch of " : " microbatches of ") +
                                 grouped(plan.micro_batch) + " per rank");
}

std::string time_lines(const StepTime& time) {
  constexpr std::string_view kExposed = "exposed_";
  std::string parts;
  for (const StepTimePart& part : kStepTimeParts) {
    const double share = time.*part.seconds / time.total_s;
    if (share >= 0.0005) {
      const bool is_exposed = part.name.starts_with(kExposed);
      parts += (parts.empty() ? "" : ", ") +
               std::string(part.name.substr(is_exposed ? kExposed.size() : 0)) + " " +
               percent(share);
    }
  }
  return label_line("step time", fixed(time.total_s, 3) + " s, " +
                                     whole(time.tokens_per_s_per_gpu) + " tokens/s per GPU, MFU " +
                                     percent(time.mfu) + " of the " + std::string(time.mfu_peak) +
                                     " peak" +
                                     (time.calibrated ? ""
                                                      : "  (uncalibrated: datasheet peaks and "
                                                        "documented efficiencies)")) +
         label_line("", parts);
}

std::string mfu_note(bool has_fp8_plans) {
  return has_fp8_plans ? "MFU: fp8 plans of the fp8 peak, others of the bf16 peak\n" : "";
}

std::string left_words(std::int64_t left_bytes) {
  return left_bytes < 0 ? gib(-left_bytes) + " GiB over the card" : gib(left_bytes) + " GiB left";
}

std::string list_lines(const std::string& title, const std::vector<std::string>& items) {
  if (items.empty()) {
    return "";
  }
  std::string text = "\n" + title + "\n";
  for (const std::string& item : items) { text += "  - " + item + "\n"; }
  return text;
}

}  // namespace shardplan
