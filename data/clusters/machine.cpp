// GPU and cluster JSON -> GpuSpec and ClusterSpec. Units stand in the keys; here they become base
// units.
#include "data/clusters/machine.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "data/clusters/machine_names.h"
#include "data/clusters/spoken_cluster.h"
#include "data/gpus/measured_times.h"
#include "data/read/json_message.h"
#include "data/read/library.h"
#include "estimator/plan/units.h"

namespace shardplan {

namespace {

constexpr std::int64_t kMaxGpusPerNode = 1024;
constexpr std::int64_t kMaxNodes = 131072;
constexpr std::int64_t kMaxGpus = std::int64_t{1} << 20;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr double kMaxRate = 1e9;  // TFLOP/s, GB/s, microseconds: beyond any machine
constexpr double kGbitPerGB = 8;
constexpr double kMicro = 1e-6;

// The numbers of a GPU file that a list "of" under "sources" must name.
constexpr std::array<std::string_view, 11> kSourcedKeys = {"compute_capability",
                                                           "num_sms",
                                                           "nominal_memory_gb",
                                                           "driver_memory_bytes",
                                                           "bf16_tflops_dense",
                                                           "fp16_tflops_dense",
                                                           "fp8_tflops_dense",
                                                           "fp32_tflops",
                                                           "memory_gb_per_s",
                                                           "nvlink_gb_per_s_per_direction",
                                                           "pcie_gb_per_s_per_direction"};

// "source; source", after checking that every number has exactly one.
std::string read_sources(ObjectReader& gpu, const std::string& file) {
  std::vector<std::string> covered;
  std::string joined;
  for (const JsonValue& item : gpu.value("sources").items) {
    ObjectReader reader(item, file);
    joined += (joined.empty() ? "" : "; ") + reader.string("source");
    for (std::string& key : reader.strings("of")) {
      if (std::ranges::find(kSourcedKeys, key) == kSourcedKeys.end() ||
          std::ranges::find(covered, key) != covered.end()) {
        throw reader.error("of", "found \"" + key + "\", expected a number of this GPU, once");
      }
      covered.push_back(std::move(key));
    }
    reader.finish();
  }
  for (const std::string_view key : kSourcedKeys) {
    if (std::ranges::find(covered, key) == covered.end()) {
      throw gpu.error("sources", "found no source of \"" + std::string(key) +
                                     "\", expected one for every number");
    }
  }
  return joined;
}

std::optional<std::int64_t> bytes_if_given(ObjectReader& reader, std::string_view key) {
  if (!reader.has(key) || reader.is_null(key)) {
    reader.ignore(key);
    return std::nullopt;
  }
  return reader.integer(key, 0, kMaxBytes);
}

std::optional<NativeMemory> read_native_memory(ObjectReader& measured, const std::string& file) {
  if (!measured.has("native") || measured.is_null("native")) {
    measured.ignore("native");
    return std::nullopt;
  }
  ObjectReader reader(measured.value("native"), file);
  NativeMemory native;
  native.context_bytes = reader.integer("context_bytes", 0, kMaxBytes);
  native.library_bytes = reader.integer("library_bytes", 0, kMaxBytes);
  native.nccl_bytes = bytes_if_given(reader, "nccl_bytes");
  native.first_send_bytes = bytes_if_given(reader, "first_send_bytes");
  native.source = reader.string("source");
  reader.finish();
  return native;
}

// What `calibrate` or a table of measured runs gave; null where nothing was measured.
void read_measured(const JsonValue& value, const std::string& file, GpuSpec& gpu) {
  if (value.kind == JsonKind::kNull) {
    return;
  }
  ObjectReader reader(value, file);
  gpu.context_bytes = bytes_if_given(reader, "context_bytes");
  gpu.library_bytes = bytes_if_given(reader, "library_bytes");
  gpu.first_communicator_bytes = bytes_if_given(reader, "first_communicator_bytes");
  gpu.next_communicator_bytes = bytes_if_given(reader, "next_communicator_bytes");
  gpu.idle_communicator_bytes = bytes_if_given(reader, "idle_communicator_bytes");
  gpu.native = read_native_memory(reader, file);
  gpu.times = read_measured_times(reader, file);
  gpu.calibration_source = reader.string("source");
  reader.finish();
}

std::optional<SustainedRates> read_sustained(ObjectReader& gpu_reader, const std::string& file,
                                             const GpuSpec& gpu) {
  if (!gpu_reader.has("sustained")) {
    return std::nullopt;
  }
  ObjectReader reader(gpu_reader.value("sustained"), file);
  SustainedRates rates;
  rates.bf16_flops_per_s = kTera * reader.number("bf16_tflops", 1, kMaxRate);
  if (gpu.fp8_flops_per_s > 0) {
    rates.fp8_flops_per_s = kTera * reader.number("fp8_tflops", 1, kMaxRate);
  }
  rates.attention_of_curve = reader.number("attention_of_curve", 0.01, 100);
  rates.source = reader.string("source");
  reader.finish();
  return rates;
}

// What an NVLink domain of the usual cluster becomes when nodes have other numbers of GPUs: one
// that spans nodes keeps its size, in whole nodes.
std::int64_t clipped_nvlink_domain(const ClusterSpec& usual, std::int64_t gpus_per_node) {
  const bool spans_nodes = usual.nvlink_domain > usual.gpus_per_node;
  return spans_nodes && usual.nvlink_domain > gpus_per_node
             ? usual.nvlink_domain / gpus_per_node * gpus_per_node
             : std::min(usual.nvlink_domain, gpus_per_node);
}

// Nothing, or why GPUs of a node cannot be divided into these NVLink domains.
std::string why_no_domain(const ClusterSpec& cluster) {
  if (cluster.gpus_per_node % cluster.nvlink_domain == 0 ||
      cluster.nvlink_domain % cluster.gpus_per_node == 0) {
    return "";
  }
  return "found " + std::to_string(cluster.gpus_per_node) + " GPUs per node in NVLink domains of " +
         std::to_string(cluster.nvlink_domain) + ", expected one to be a multiple of the other";
}

void read_network(ObjectReader& reader, ClusterSpec& cluster) {
  if (reader.has("network") || reader.has("rails") || reader.has("rail_gbit_per_s")) {
    const std::int64_t rails = reader.integer("rails", 1, kMaxGpusPerNode);
    const double rail_gbit_per_s = reader.number("rail_gbit_per_s", 1, kMaxRate);
    cluster.inter_node_bytes_per_s = static_cast<double>(rails) * rail_gbit_per_s / kGbitPerGB *
                                     kGB / static_cast<double>(cluster.gpus_per_node);
    cluster.network =
        reader.string("network") + ", " + std::to_string(rails) + (rails == 1 ? " rail" : " rails");
  }
  cluster.intra_node_latency_s =
      kMicro *
      reader.number_or("intra_node_latency_us", cluster.intra_node_latency_s / kMicro, 0, kMaxRate);
  cluster.inter_node_latency_s =
      kMicro *
      reader.number_or("inter_node_latency_us", cluster.inter_node_latency_s / kMicro, 0, kMaxRate);
}

// The members of a cluster beside its GPU. What is absent stays as `usual` has it.
ClusterSpec read_shape(ObjectReader& reader, const ClusterSpec& usual) {
  ClusterSpec cluster = usual;
  cluster.gpus_per_node =
      reader.integer_or("gpus_per_node", usual.gpus_per_node, 1, kMaxGpusPerNode);
  cluster.nodes = reader.integer_or("nodes", 1, 1, kMaxNodes);
  if (cluster.world_size() > kMaxGpus) {
    throw reader.error("nodes", "found " + std::to_string(cluster.world_size()) +
                                    " GPUs in all, expected at most " + std::to_string(kMaxGpus));
  }
  cluster.nvlink_domain = reader.integer_or(
      "nvlink_domain", clipped_nvlink_domain(usual, cluster.gpus_per_node), 1, kMaxGpus);
  const std::string why = why_no_domain(cluster);
  if (!why.empty()) {
    throw reader.error(reader.has("nvlink_domain") ? "nvlink_domain" : "gpus_per_node", why);
  }
  read_network(reader, cluster);
  if (reader.has("host_memory_gb_per_s")) {
    cluster.host_memory_bytes_per_s = kGB * reader.number("host_memory_gb_per_s", 1, kMaxRate) /
                                      static_cast<double>(cluster.gpus_per_node);
  }
  cluster.host_slowdown = reader.number_or("host_slowdown", usual.host_slowdown, 0.01, 100);
  cluster.usd_per_gpu_hour =
      reader.number_or("usd_per_gpu_hour", usual.usd_per_gpu_hour, 0, kMaxRate);
  const double limit_gib = reader.number_or("memory_limit_gib", 0, 0, 1e6);
  if (limit_gib > 0) {
    cluster.memory_limit_bytes = std::llround(limit_gib * static_cast<double>(kGiB));
  }
  cluster.source = reader.string_or("source", usual.source);
  return cluster;
}

void require_links(const ObjectReader& reader, const ClusterSpec& cluster, const GpuSpec& gpu) {
  if (cluster.nvlink_domain > 1 && gpu.nvlink_bytes_per_s == 0) {
    throw reader.error("nvlink_domain", "found " + std::to_string(cluster.nvlink_domain) +
                                            ", expected 1: " + gpu.id + " has no NVLink");
  }
}

// A GPU file: the chip, and one node of it as it is usually sold.
ClusterSpec read_gpu_file(const JsonValue& value, const std::string& file,
                          const std::shared_ptr<const TimeConstants>& constants) {
  ObjectReader reader(value, file);
  GpuSpec gpu;
  gpu.constants = constants;
  gpu.id = reader.string("id");
  gpu.aliases = reader.strings("aliases");
  gpu.compute_capability = reader.integer("compute_capability", 10, 999);
  gpu.num_sms = reader.integer("num_sms", 1, 10000);
  gpu.nominal_memory_bytes = std::llround(kGB * reader.number("nominal_memory_gb", 1, 1e6));
  gpu.memory_bytes = reader.integer("driver_memory_bytes", kGiB, kMaxBytes);
  gpu.bf16_flops_per_s = kTera * reader.number("bf16_tflops_dense", 1, kMaxRate);
  gpu.fp16_flops_per_s = kTera * reader.number("fp16_tflops_dense", 1, kMaxRate);
  gpu.fp8_flops_per_s = kTera * reader.number_or("fp8_tflops_dense", 0, 1, kMaxRate);
  gpu.fp32_flops_per_s = kTera * reader.number("fp32_tflops", 1, kMaxRate);
  gpu.memory_bytes_per_s = kGB * reader.number("memory_gb_per_s", 1, kMaxRate);
  gpu.nvlink_bytes_per_s = kGB * reader.number_or("nvlink_gb_per_s_per_direction", 0, 1, kMaxRate);
  gpu.pcie_bytes_per_s = kGB * reader.number("pcie_gb_per_s_per_direction", 1, kMaxRate);
  gpu.source = read_sources(reader, file);
  gpu.sustained = read_sustained(reader, file, gpu);
  read_measured(reader.value("measured"), file, gpu);

  ObjectReader usual_reader(reader.value("usual_cluster"), file);
  ClusterSpec usual = read_shape(usual_reader, ClusterSpec{});
  require_links(usual_reader, usual, gpu);
  if (usual.inter_node_bytes_per_s == 0 || usual.source.empty()) {
    throw usual_reader.error("", "found no network or no source, expected both");
  }
  usual_reader.finish();
  reader.finish();
  usual.gpu = std::move(gpu);
  return usual;
}

std::string name_of_shape(const ClusterSpec& cluster, const std::string& machine) {
  return std::to_string(cluster.nodes) + "x" + std::to_string(cluster.gpus_per_node) + "-" +
         machine;
}

void check_count(const std::string& opening, std::int64_t found, std::int64_t high,
                 const std::string& of_what) {
  if (found < 1 || found > high) {
    throw InputError(opening + "found " + std::to_string(found) + " " + of_what +
                     ", expected an integer from 1 to " + std::to_string(high));
  }
}

}  // namespace

GpuSpec read_gpu(const JsonValue& value, const std::string& file) {
  return read_gpu_file(value, file, nullptr).gpu;
}

ClusterSpec read_cluster(const JsonValue& value, const std::string& file, const Library& library) {
  ObjectReader reader(value, file);
  const JsonValue& gpu = reader.value("gpu");
  const bool by_name = gpu.kind == JsonKind::kString;
  const ClusterSpec usual =
      by_name ? library.usual_cluster(
                    gpu.string, file + ":" + std::to_string(gpu.line) + ": " + gpu.pointer + ": ")
              : read_gpu_file(gpu, file, library.time_constants());
  ClusterSpec cluster = read_shape(reader, usual);
  const GpuSpec& spec = cluster.gpu;
  require_links(reader, cluster, spec);
  if (reader.has("aliases")) {
    reader.strings("aliases");  // cluster_path reads them
  }
  cluster.name = reader.string_or(
      "name", name_of_shape(cluster, spec.aliases.empty() ? spec.id : spec.aliases.front()));
  reader.finish();
  return cluster;
}

ClusterSpec Library::usual_cluster(const std::string& gpu_name_or_path,
                                   const std::string& where) const {
  if (is_path(gpu_name_or_path)) {
    const JsonValue gpu = parse_text(read_text_file(gpu_name_or_path, where), gpu_name_or_path);
    return read_gpu_file(gpu, gpu_name_or_path, time_constants());
  }
  const auto read = read_->usual_clusters.find(gpu_name_or_path);
  if (read != read_->usual_clusters.end()) {
    return read->second;
  }
  const std::string path = spoken_gpu_path(gpu_name_or_path);
  if (path.empty()) {
    throw unknown_gpu(gpu_name_or_path, where.empty() ? "gpu: " : where, *this);
  }
  const JsonFile& gpu = parse(path);
  ClusterSpec usual = read_gpu_file(gpu.json, gpu.file, time_constants());
  usual.name = name_of_shape(usual, in_lower_case(gpu_name_or_path));
  return read_->usual_clusters[gpu_name_or_path] = usual;
}

GpuSpec Library::gpu(const std::string& name_or_path, const std::string& where) const {
  return usual_cluster(name_or_path, where).gpu;
}

ClusterSpec Library::cluster(const std::string& name_or_path, const std::string& where) const {
  if (is_path(name_or_path)) {
    const JsonValue json = parse_text(read_text_file(name_or_path, where), name_or_path);
    return read_cluster(json, name_or_path, *this);
  }
  const std::string opening = where.empty() ? "cluster: " : where;
  const std::string name = in_lower_case(name_or_path);
  const std::optional<ShapedName> shaped = parse_shaped_name(name);
  const std::string machine = shaped ? shaped->machine : name;
  const std::string path = "clusters/" + machine + ".json";
  const bool is_written_so =
      has(path) ||
      (shaped && (read_->usual_clusters.contains(machine) || !gpu_path(machine).empty()));
  if (!is_written_so) {
    const std::string meant = cluster_named(name, opening);
    if (meant.empty() && !shaped) {
      throw unknown_cluster(name_or_path, opening, *this);
    }
    if (!meant.empty() && meant != name) {
      return cluster(meant, where);
    }
  }
  ClusterSpec found;
  if (has(path)) {
    const JsonFile& file = parse(path);
    found = read_cluster(file.json, file.file, *this);
  } else {
    found = usual_cluster(machine, opening);
  }
  if (shaped) {
    check_count(opening, shaped->nodes, kMaxNodes, "nodes");
    check_count(opening, shaped->gpus_per_node, kMaxGpusPerNode, "GPUs per node");
    check_count(opening, shaped->nodes * shaped->gpus_per_node, kMaxGpus, "GPUs in all");
    found.nvlink_domain = clipped_nvlink_domain(found, shaped->gpus_per_node);
    found.nodes = shaped->nodes;
    found.gpus_per_node = shaped->gpus_per_node;
    if (const std::string why = why_no_domain(found); !why.empty()) {
      throw InputError(opening + why);
    }
  }
  found.name = name;
  return found;
}

}  // namespace shardplan
