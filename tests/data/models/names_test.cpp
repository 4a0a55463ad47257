// Names of parameters against those of transformers 5.17's classes: elements of the parameters in
// whose names an expression is found, AutoModelForCausalLM.from_config on the meta device.
#include <doctest/doctest.h>

#include <array>
#include <regex>
#include <string>

#include "data/read/library.h"
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"

namespace shardplan {
namespace {

struct Counted {
  const char* model = "";
  std::int64_t all = 0;
  std::int64_t layer_1 = 0;  // ^model\.layers\.1\.
  std::int64_t mixers = 0;   // self_attn\.|linear_attn\.
  std::int64_t ffn = 0;      // mlp\.
  std::int64_t norms = 0;    // layernorm
  std::int64_t routers = 0;  // layers\.\d+\.mlp\.gate\.weight
};

constexpr std::array kCounted = std::to_array<Counted>({
    {"llama3.2-1b", 1235814400, 60821504, 167772160, 805306368, 65536, 0},
    {"mistral-7b-v0.3", 7248023552, 218112000, 1342177280, 5637144576, 262144, 0},
    {"ministral-8b", 8019808256, 192946176, 1509949440, 5435817984, 294912, 0},
    {"ministral-3-3b", 3429006336, 116398080, 817889280, 2208301056, 159744, 0},
    {"mixtral-8x7b", 46702792704, 1451270144, 1342177280, 45098205184, 262144, 1048576},
    {"qwen2.5-1.5b", 1543714304, 46797824, 154198016, 1156055040, 86016, 0},
    {"qwen1.5-moe-a2.7b", 14315784192, 570560512, 402800640, 13290553344, 98304, 2949120},
    {"qwen3-4b", 4022468096, 100930816, 943727616, 2689597440, 184320, 0},
    {"qwen3-30b-a3b", 30532122624, 623120640, 905981952, 29003612160, 196608, 12582912},
    {"qwen3-next-80b-a3b", 79674391296, 1648531648, 1541026560, 77510836224, 196608, 50331648},
    {"qwen3.5-4b", 4205751296, 112923840, 1304961536, 2264924160, 163840, 0},
    {"qwen3.5-35b-a3b", 34660610688, 842700992, 1284188800, 32359137280, 163840, 20971520},
    {"smollm3-3b", 3075098624, 78123008, 377487360, 2434793472, 147456, 0},
    {"phi-3-mini", 3821079552, 113252352, 1207959552, 2415919104, 196608, 0},
    {"granite-3.3-8b", 8170864640, 199237632, 1677721600, 6291456000, 327680, 0},
    {"seed-oss-36b", 36151104512, 540039168, 7382761472, 27179089920, 655360, 0},
    {"gemma-2b", 2506172416, 110104576, 169869312, 1811939328, 73728, 0},
    {"gemma2-2b", 2614341888, 77865984, 368050176, 1656225792, 239616, 0},
    {"gemma3-4b", 3880263168, 94382592, 534791168, 2673868800, 348160, 0},
    {"olmo-2-1b", 1484916736, 67117056, 268500992, 805306368, 65536, 0},
    {"olmo-3-7b", 7298011136, 202391552, 2147745792, 4328521728, 262144, 0},
    {"deepseek-v2-lite", 15706484224, 584847872, 371602944, 14915338240, 124416, 3407872},
    {"deepseek-v3", 671026404352, 583483392, 11413547008, 657758617600, 999424, 106430464},
});

}  // namespace

TEST_CASE("parameters have the names of transformers' classes") {
  const Library library;
  Job job;
  job.cluster = library.cluster("1x8-h100");
  job.profile = library.framework("transformers");
  job.sequence_length = 128;
  job.global_batch = 1;
  for (const Counted& each : kCounted) {
    CAPTURE(each.model);
    job.model = library.model(each.model).model;
    const std::vector<huggingface::NamedParameter> named = huggingface::named_parameters(job);
    CHECK(huggingface::has_known_names(job.model));
    const auto found_by = [&](const char* pattern) {
      const std::regex compiled(pattern);
      std::int64_t elements = 0;
      for (const huggingface::NamedParameter& parameter : named) {
        elements += std::regex_search(parameter.name, compiled) ? parameter.elements : 0;
      }
      return elements;
    };
    CHECK(found_by("") == each.all);
    CHECK(found_by("^model\\.layers\\.1\\.") == each.layer_1);
    CHECK(found_by("self_attn\\.|linear_attn\\.") == each.mixers);
    CHECK(found_by("mlp\\.") == each.ffn);
    CHECK(found_by("layernorm") == each.norms);
    CHECK(found_by("layers\\.\\d+\\.mlp\\.gate\\.weight") == each.routers);
  }
}

}  // namespace shardplan
