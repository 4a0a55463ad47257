#include "tools/screen/job.h"

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/report/lines.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr double kBitsPerByte = 8;
constexpr double kGiga = 1e9;

// Named by its shape, as 2x8-h100: the rest is what is usual for the GPU.
bool is_usual(const ClusterSpec& cluster) {
  const std::size_t times = cluster.name.find_first_not_of("0123456789");
  return times != std::string::npos && times > 0 && cluster.name[times] == 'x';
}

std::string signed_share(double share) {
  const std::string text = fixed(100 * share, 1);
  const bool is_zero = text == "0.0" || text == "-0.0";
  return (is_zero ? "0" : (share > 0 ? "+" : "") + text) + " %";
}

}  // namespace

std::string memory_words(const Job& job, const MemoryEstimate& memory) {
  const std::int64_t used = basis_bytes(memory, MemoryBasis::kDeviceUsed);
  const std::int64_t card = card_bytes(job);
  const double share = static_cast<double>(used) / static_cast<double>(card);
  return gib(used) + " of " + gib(card) + " GiB on the fullest GPU (" + percent(share) + "), " +
         left_words(card - used);
}

std::string speed_words(const StepTime& time) {
  return fixed(time.total_s, 3) + " s a step, " + whole(time.tokens_per_s_per_gpu) +
         " tokens/s per GPU, MFU " + percent(time.mfu) + (time.calibrated ? "" : " (uncalibrated)");
}

std::string job_rows(const Screen& screen, const Job& job) {
  const std::string sequences = job.global_batch == 1 ? " sequence of " : " sequences of ";
  return screen_line(screen, "job",
                     job.model.name + ", " + grouped(job.global_batch) + sequences +
                         grouped(job.sequence_length) + " tokens, " + grouped(job.cluster.nodes) +
                         (job.cluster.nodes == 1 ? " node of " : " nodes of ") +
                         grouped(job.cluster.gpus_per_node) + " x " + job.cluster.gpu.id + ", " +
                         job.profile.name + " " + job.profile.version,
                     2);
}

std::string network_words(const ClusterSpec& cluster) {
  const double inside = cluster.gpu.nvlink_bytes_per_s;
  std::string text = cluster.world_size() == 1 ? "none: one GPU"
                     : inside > 0
                         ? "NVLink of " + shortest(inside / kGiga) + " GB/s"
                         : "PCIe of " + shortest(cluster.gpu.pcie_bytes_per_s / kGiga) + " GB/s";
  const std::int64_t domain = cluster.gpus_per_domain();
  if (domain > cluster.gpus_per_node) {
    text += " in domains of " + grouped(domain) + " GPUs";
  } else if (cluster.world_size() > 1) {
    text += " in a node";
  }
  if (cluster.nodes > 1 && domain < cluster.world_size()) {
    text += "; between nodes " + (cluster.network.empty() ? "" : cluster.network + ", ") +
            shortest(cluster.inter_node_bytes_per_s * kBitsPerByte / kGiga) + " Gbit/s per GPU";
    text += is_usual(cluster) ? " (assumed; --cluster FILE says otherwise)" : "";
  }
  return text;
}

std::string step_words(const StepTime& time) {
  constexpr std::string_view kExposed = "exposed_";
  constexpr double kWorthNaming = 0.01;
  std::string text;
  double named = 0;
  for (const StepTimePart& part : kStepTimeParts) {
    const double share = time.*part.seconds / time.total_s;
    if (share >= kWorthNaming) {
      const std::size_t start = part.name.starts_with(kExposed) ? kExposed.size() : 0;
      text += (text.empty() ? "" : ", ") + std::string(part.name.substr(start)) + " " +
              fixed(100 * share, 1) + " %";
      named += share;
    }
  }
  return 1 - named >= kWorthNaming / 10 ? text + ", other " + fixed(100 * (1 - named), 1) + " %"
                                        : text;
}

std::string evidence_words(const Evidence& evidence) {
  if (evidence.num_runs == 0 || evidence.nearest.empty()) {
    return evidence.num_runs == 0
               ? "no run of this framework is among the measurements"
               : "none of " + grouped(evidence.num_runs) + " measured runs is near";
  }
  std::string text = "nearest " + grouped(std::ssize(evidence.nearest)) + " of " +
                     grouped(evidence.num_runs) + " measured runs";
  const auto device =
      std::ranges::find(evidence.intervals, Quantity::kDeviceUsed, &SupportedInterval::quantity);
  const auto interval = device != evidence.intervals.end() ? device : evidence.intervals.begin();
  if (interval != evidence.intervals.end()) {
    const std::string low = signed_share(interval->least_error);
    const std::string high = signed_share(interval->most_error);
    text += ": " + std::string(name_of(interval->quantity)) + " " +
            (low == high ? "off by " + low : low + " to " + high + " off");
  }
  std::vector<std::string> unknown = evidence.uncovered;
  unknown.insert(unknown.end(), evidence.beyond.begin(), evidence.beyond.end());
  return unknown.empty() ? text : text + "; no run has: " + joined(unknown);
}

}  // namespace shardplan
