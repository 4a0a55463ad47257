#include "data/clusters/machine_names.h"

#include <doctest/doctest.h>

#include <map>

#include "data/clusters/spoken_cluster.h"
#include "data/gpus/gpu_key.h"
#include "data/read/library.h"

namespace shardplan {
namespace {

std::string gpu_of(const std::string& name) {
  return Library().gpu(name).id;
}

// What and what to do.
std::string refusal_of(const std::string& cluster) {
  try {
    Library().cluster(cluster);
  } catch (const InputError& problem) { return problem.what() + ("; " + problem.hint); }
  return "";
}

}  // namespace

TEST_CASE("a GPU is known by the name that nvidia-smi and PyTorch print") {
  const std::map<std::string, std::string> printed = {
      {"NVIDIA H100 80GB HBM3", "H100-SXM-80GB"},
      {"NVIDIA H100 PCIe", "H100-PCIe-80GB"},
      {"NVIDIA H100 NVL", "H100-NVL-94GB"},
      {"NVIDIA H200", "H200-SXM-141GB"},
      {"NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"},
      {"NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"},
      {"A100-SXM-80GB", "A100-SXM-80GB"},
      {"NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"},
      {"NVIDIA A800-SXM4-80GB", "A800-SXM-80GB"},
      {"NVIDIA H800", "H800-SXM-80GB"},
      {"NVIDIA H20", "H20-SXM-96GB"},
      {"NVIDIA B200", "B200-SXM-180GB"},
      {"NVIDIA B300 SXM6 AC", "B300-SXM-270GB"},
      {"NVIDIA GB200", "GB200-186GB"},
      {"NVIDIA GH200 480GB", "GH200-96GB"},
      {"NVIDIA L40S", "L40S-48GB"},
      {"NVIDIA A10", "A10-24GB"},
      {"NVIDIA RTX A6000", "RTX-A6000-48GB"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada-48GB"},
      {"NVIDIA GeForce RTX 3090", "RTX-3090-24GB"},
      {"NVIDIA GeForce RTX 4090", "RTX-4090-24GB"},
      {"NVIDIA GeForce RTX 5090", "RTX-5090-32GB"}};
  for (const auto& each : printed) { CHECK_MESSAGE(gpu_of(each.first) == each.second, each.first); }
}

TEST_CASE("a GPU is known by the name that lspci prints") {
  CHECK(gpu_of("GH100 [H100 SXM5 80GB]") == "H100-SXM-80GB");
  CHECK(gpu_of("NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev a1)") == "A100-SXM-40GB");
  CHECK(gpu_of("GA102 [GeForce RTX 3090]") == "RTX-3090-24GB");
}

TEST_CASE("no two GPUs have one key") {
  const Library library;
  std::map<std::string, std::string> ids;
  for (const std::string& id : library.gpu_names()) {
    std::vector<std::string> names = library.gpu(id).aliases;
    names.push_back(id);
    for (const std::string& name : names) {
      const std::string& known = ids.emplace(gpu_key(name), id).first->second;
      CHECK_MESSAGE(known == id, name << " is " << known << ", too");
    }
  }
}

TEST_CASE("a number of GPUs is a cluster of usual nodes, however it is written") {
  const Library library;
  for (const char* const word :
       {"8xh100", "8xH100", "8 x H100", "8*h100", "h100x8", "h100:8", "h100-8", "1x8xh100",
        "1x8:h100", "1x8_h100", "8-h100", "h100", "gpu_8x_h100_sxm5", "8x NVIDIA H100 80GB HBM3"}) {
    CHECK_MESSAGE(library.cluster_named(word).starts_with("1x8-h100"), word);
    CHECK_MESSAGE(library.cluster(word).world_size() == 8, word);
    CHECK_MESSAGE(library.cluster(word).gpu.id == "H100-SXM-80GB", word);
  }
  CHECK(library.cluster_named("2xh100") == "1x2-h100");
  CHECK(library.cluster_named("64xh100") == "8x8-h100");
  CHECK(library.cluster_named("4x8xh100") == "4x8-h100");
  CHECK(library.cluster_named("8x4090") == "1x8-4090");
  CHECK(library.cluster_named("2x8x4090") == "2x8-4090");
}

TEST_CASE("what is a name stays one") {
  const Library library;
  for (const char* const name : {"1x8-h100", "16x8-aws-p5", "2x4-gb200", "1x8-h100-80gb"}) {
    CHECK(library.cluster(name).name == name);
    CHECK(library.cluster_named(name) == name);
  }
  CHECK(library.cluster("aws-p5").name == "aws-p5");
  CHECK(library.cluster_named("1x8-h100-sxm5") == "1x8-h100");
}

TEST_CASE("a cloud's name of a machine is the cluster of such machines") {
  const Library library;
  CHECK(library.cluster_named("p5.48xlarge") == "aws-p5");
  CHECK(library.cluster_named("4xp5.48xlarge") == "4x8-aws-p5");
  CHECK(library.cluster_named("4 x a3-megagpu-8g") == "4x8-gcp-a3-mega");
  CHECK(library.cluster_named("Standard_ND96isr_H100_v5") == "azure-nd-h100-v5");
  CHECK(library.cluster("4xp5.48xlarge").world_size() == 32);
  CHECK(library.cluster("nd96amsr_a100_v4").gpu.id == "A100-SXM-80GB");
}

TEST_CASE("no word is the name of two clusters") {
  const Library library;
  std::map<std::string, std::string> owners;
  for (const std::string& name : library.cluster_names()) {
    const JsonFile& file = library.parse("clusters/" + name + ".json");
    ObjectReader reader(file.json, file.file);
    for (const std::string& alias :
         reader.has("aliases") ? reader.strings("aliases") : std::vector<std::string>{}) {
      CHECK_MESSAGE(owners.emplace(alias, name).second, alias);
      CHECK(in_lower_case(alias) == alias);
      CHECK(library.cluster_named(alias) == name);
      CHECK_FALSE(library.has("clusters/" + alias + ".json"));
    }
  }
  CHECK(owners.size() >= 15);
}

TEST_CASE("GPUs that fill no whole nodes are refused with nodes that they fill") {
  const std::string refusal = refusal_of("12xh100");
  CHECK(refusal.find("12 GPUs of h100, which fill no whole nodes of 8") != std::string::npos);
  CHECK(refusal.find("2x6-h100") != std::string::npos);
  CHECK(refusal_of("13xh100").find("2x8-h100") != std::string::npos);
}

TEST_CASE("chips that are not covered are refused with the reason and without a guess") {
  for (const char* const word :
       {"1x8-mi300x", "AMD Instinct MI325X", "tpu-v5p", "trn1.32xlarge", "1x8-gaudi3"}) {
    const std::string refusal = refusal_of(word);
    CHECK_MESSAGE(refusal.find("only NVIDIA GPUs are covered") != std::string::npos, word);
    CHECK_MESSAGE(refusal.find("did you mean") == std::string::npos, word);
  }
  for (const char* const word : {"1x8-v100", "Tesla V100-SXM2-32GB", "4xt4", "1x2-p100"}) {
    CHECK_MESSAGE(refusal_of(word).find("compute capability 8.0") != std::string::npos, word);
  }
  CHECK(why_not_covered("NVIDIA A100-SXM4-80GB").empty());
  CHECK(why_not_covered("RTX-6000-Ada-48GB").empty());
}

TEST_CASE("words that name no machine have no meaning") {
  const Library library;
  for (const char* const word : {"1x8", "x8-h200", "1.5x8-h200", "8x", "h", "", "1x8-h200-extra"}) {
    CHECK_MESSAGE(library.cluster_named(word).empty(), word);
  }
}

}  // namespace shardplan
