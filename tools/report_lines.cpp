#include "tools/report_lines.h"

#include "estimator/estimate.h"
#include "estimator/parameters.h"
#include "tools/text.h"

namespace shardplan {
namespace {

// Where a domain spans nodes.
std::string domain_words(const ClusterSpec& cluster) {
  const std::int64_t domain = cluster.gpus_per_domain();
  return domain > cluster.gpus_per_node ? ", NVLink domains of " + grouped(domain) : "";
}

}  // namespace

std::string label_line(std::string_view label, const std::string& text) {
  return padded_right(label, 13) + text + "\n";
}

std::string job_lines(const Job& job) {
  std::string model =
      job.model.name + ", derived " + grouped(count_parameters(job.model)) + " parameters";
  if (count_active_parameters(job.model) != count_parameters(job.model)) {
    model += " (" + grouped(count_active_parameters(job.model)) + " active)";
  }
  if (count_mtp_parameters(job.model) > 0) {
    model += " + " + grouped(count_mtp_parameters(job.model)) + " of prediction modules";
  }
  return label_line("model", model) +
         label_line("cluster", job.cluster.name + ": " + grouped(job.cluster.world_size()) + " x " +
                                   job.cluster.gpu.id + ", " +
                                   gib(device_capacity_bytes(job.cluster)) + " GiB each" +
                                   domain_words(job.cluster)) +
         label_line("framework", job.profile.name + " " + job.profile.version);
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
