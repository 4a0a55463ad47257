#include <doctest/doctest.h>

#include <algorithm>

#include "data/frameworks/framework.h"
#include "data/read/library.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/data/message_of.h"

using namespace shardplan;

namespace {

FrameworkProfile with_options(const std::string& framework, const std::string& json) {
  const Library library;
  FrameworkProfile profile = library.framework(framework);
  apply_options(profile, parse_json(json, "o.json"), "o.json", library);
  return profile;
}

}  // namespace

TEST_CASE("nine profiles are shipped, two in three versions, each with version and row tables") {
  const Library library;
  CHECK(library.framework_names() ==
        std::vector<std::string>{"deepspeed", "deepspeed@0.16.9", "deepspeed@0.19.5", "fujii2024",
                                 "megatron-core-local", "megatron", "nanotron", "nanotron@v0.4",
                                 "nanotron@v0.5-dev", "native", "pytorch", "torchtitan",
                                 "transformers"});
  CHECK(library.framework("megatron").version == "core_v0.16.1");
  CHECK(library.framework("megatron").memory_model == MemoryModel::kMegatron);
  CHECK(library.framework("native").version == "0.1");
  CHECK(library.framework("native").memory_model == MemoryModel::kNative);
  CHECK(library.framework("torchtitan").version == "v0.2.2");
  CHECK(library.framework("torchtitan").memory_model == MemoryModel::kTorchtitan);
  CHECK(library.framework("fujii2024").memory_model == MemoryModel::kFujii2024);
  for (const std::string& name : library.framework_names()) {
    CHECK(library.framework(name).name == name.substr(0, name.find('@')));
    CHECK(library.known_framework(name));
  }
}

TEST_CASE("a profile has the layout of its framework, without a file as well, and its choices") {
  CHECK(FrameworkProfile{}.layout == framework_of(FrameworkProfile{}).layout);
  const Library library;
  for (const std::string& name : library.framework_names()) {
    const FrameworkProfile profile = library.framework(name);
    CHECK(profile.layout == framework_of(profile).layout);
    const FrameworkChoices& choices = framework_of(profile).choices;
    CHECK((profile.choices.counted_ends == choices.counted_ends));
    CHECK((profile.choices.overlaps == choices.overlaps));
  }
}

TEST_CASE("the megatron profile is Transformer Engine with the distributed optimizer") {
  const FrameworkProfile megatron = Library().framework("megatron");
  CHECK(megatron.default_zero == 1);
  CHECK(megatron.swiglu == SwigluKind::kFused);
  CHECK(megatron.cross_entropy == CrossEntropyKind::kTeFused);
  CHECK(megatron.dummy_weight_gradients);
  CHECK(megatron.gradient_accumulation_fusion);
  CHECK(megatron.vocab_multiple == 128);
  CHECK(megatron.allocator == AllocatorKind::kCaching);
  CHECK_FALSE(megatron.overlap_grad_reduce);
  CHECK(megatron.fixed_workspace_bytes == 32 * (1 << 20));  // cuBLAS on compute capability 9.0
}

TEST_CASE("the native profile has static arenas, a chunked loss and no dummies") {
  const FrameworkProfile native = Library().framework("native");
  CHECK(native.allocator == AllocatorKind::kStaticArenas);
  CHECK(native.cross_entropy == CrossEntropyKind::kChunked);
  CHECK(native.cross_entropy_chunks == 8);
  CHECK_FALSE(native.dummy_weight_gradients);
  CHECK(native.default_zero == 1);
  CHECK(native.default_grad_dtype == DType::kFp32);
}

TEST_CASE("every option has a type, a default that reads back, a meaning and a source") {
  const Library library;
  for (const std::string& name : library.framework_names()) {
    for (const ProfileOption& option : profile_options(library, name)) {
      CAPTURE(name);
      CAPTURE(option.name);
      CHECK(option.meaning.size() > 10);
      CHECK(option.source.size() > 10);
      CHECK((option.type == "choice") == !option.choices.empty());
      FrameworkProfile profile = library.framework(name);
      CHECK_NOTHROW(apply_option(profile, option.name, option.default_value, library));
      for (const std::string& word : option.choices) {
        CHECK_NOTHROW(apply_option(profile, option.name, word, library));
      }
    }
  }
}

TEST_CASE("a version has what its base has, but for what it declares itself") {
  const Library library;
  const std::vector<ProfileOption> base = profile_options(library, "nanotron");
  const std::vector<ProfileOption> version = profile_options(library, "nanotron@v0.4");
  REQUIRE(version.size() == base.size());
  for (std::size_t i = 0; i < base.size(); ++i) {
    CHECK(version[i].name == base[i].name);
    CHECK((version[i].default_value == base[i].default_value) ==
          (base[i].name != "recompute_allgather"));
  }
  CHECK(profile_plan_defaults(library, "nanotron@v0.4").size() ==
        profile_plan_defaults(library, "nanotron").size());
  const FrameworkProfile old = library.framework("nanotron@v0.4");
  CHECK(old.version == "v0.4");
  CHECK(old.memory_model == MemoryModel::kNanotron);
  CHECK(old.handover_s == library.framework("nanotron").handover_s);
}

TEST_CASE("versions of DeepSpeed differ in their checks of gradients") {
  const Library library;
  CHECK(library.framework("deepspeed").overflow_check == OverflowCheck::kByExtremes);
  CHECK(library.framework("deepspeed@0.19.5").overflow_check == OverflowCheck::kByCopies);
  CHECK(library.framework("deepspeed@0.16.9").overflow_check == OverflowCheck::kFp16ByCopies);
  CHECK(library.framework("deepspeed@0.16.9").all_reduced_zero == 2);
}

TEST_CASE("megatron and native state every field of a profile, once") {
  // A field that a file forgets would silently keep the default of the struct.
  const Library library;
  const auto stated = [&](const std::string& framework) {
    const JsonFile& file = library.parse("frameworks/" + framework + ".json");
    ObjectReader reader(file.json, file.file);
    std::vector<std::string> names;
    for (const char* section : {"options", "fixed"}) {
      for (const auto& [name, declaration] : reader.value(section).members) {
        names.push_back(name);
      }
    }
    std::ranges::sort(names);
    CHECK(std::ranges::adjacent_find(names) == names.end());
    return names;
  };
  std::vector<std::string> megatron = stated("megatron");
  std::erase(megatron, "tp_overlap_pieces");  // where native has tokens of a piece
  CHECK(megatron.size() >= 32);
  std::vector<std::string> native = stated("native");
  std::erase(native, "tensor_parallel_chunk_tokens");
  CHECK(megatron == native);
  for (const std::string& name : stated("fujii2024")) {
    CHECK(std::ranges::binary_search(megatron, name));
  }
}

TEST_CASE("the switches of the measured Megatron runs are options of megatron") {
  const FrameworkProfile profile = with_options(
      "megatron",
      R"({"overlap_grad_reduce": true, "overlap_param_gather": true, "eager_communicators": true})");
  CHECK(profile.overlap_grad_reduce);
  CHECK(profile.overlap_param_gather);
  CHECK(profile.eager_communicators);
}

TEST_CASE("options of every type are set from JSON and from words alike") {
  const Library library;
  const FrameworkProfile from_json = with_options(
      "megatron", R"({"swiglu": "unfused", "cross_entropy": "native_fused", "vocab_multiple": 1,
                      "moe_capacity_factor": 1.25, "allocator": "caching_expandable"})");
  FrameworkProfile from_words = library.framework("megatron");
  apply_option(from_words, "swiglu", "unfused", library);
  apply_option(from_words, "cross_entropy", "native_fused", library);
  apply_option(from_words, "vocab_multiple", "1", library);
  apply_option(from_words, "moe_capacity_factor", "1.25", library);
  apply_option(from_words, "allocator", "caching_expandable", library);
  for (const FrameworkProfile& profile : {from_json, from_words}) {
    CHECK(profile.swiglu == SwigluKind::kUnfused);
    CHECK(profile.cross_entropy == CrossEntropyKind::kNativeFused);
    CHECK(profile.vocab_multiple == 1);
    CHECK(profile.moe_capacity_factor == 1.25);
    CHECK(profile.allocator == AllocatorKind::kCachingExpandable);
  }
}

TEST_CASE("wrong options are refused with what the profile knows") {
  const Library library;
  const auto json = [](const char* framework, const char* options) {
    return message_of([&] { with_options(framework, options); });
  };
  const auto word = [&](const char* name, const char* value) {
    FrameworkProfile profile = library.framework("megatron");
    return message_of([&] { apply_option(profile, name, value, library); });
  };
  const std::string unknown = json("megatron", "\n{\"overlap_grad_reduces\": true}");
  CHECK(
      unknown.starts_with("o.json:2: /overlap_grad_reduces: found unknown option "
                          "\"overlap_grad_reduces\", expected one that `shardplan list options "
                          "megatron` shows"));
  CHECK(unknown.ends_with("; did you mean \"overlap_grad_reduce\"?"));
  CHECK(json("fujii2024", R"({"swiglu": "fused"})") ==
        "o.json:1: /swiglu: found unknown option \"swiglu\", expected none: profile fujii2024 has "
        "no options");
  CHECK(json("megatron", R"({"overlap_grad_reduce": 1})") ==
        "o.json:1: /overlap_grad_reduce: found integer 1, expected true or false");
  CHECK(json("megatron", R"({"swiglu": "fast"})") ==
        "o.json:1: /swiglu: found string \"fast\", expected one of fused, unfused");
  CHECK(json("native", R"({"cross_entropy_chunks": 1.5})") ==
        "o.json:1: /cross_entropy_chunks: found number 1.5, expected an integer from 1 to 1024");
  CHECK(json("native", R"([])") == "o.json:1: found an array of 0, expected an object");
  // A number of the profile that is not declared as an option.
  CHECK(json("megatron", R"({"default_zero": 3})").find("found unknown option") !=
        std::string::npos);
  CHECK(word("overlap_grad_reduce", "yes") ==
        "option overlap_grad_reduce: found \"yes\", expected true or false");
  CHECK(word("vocab_multiple", "99999999999999999999") ==
        "option vocab_multiple: found \"99999999999999999999\", expected an integer from 1 to "
        "1048576");
  CHECK(word("moe_capacity_factor", "nan") ==
        "option moe_capacity_factor: found \"nan\", expected a number from 0 to 1024");
  CHECK(word("vocab_multiple", "") ==
        "option vocab_multiple: found \"\", expected an integer from 1 to 1048576");
}

TEST_CASE("a plain script of PyTorch has the Trainer's model, and options, without the Trainer") {
  const Library library;
  FrameworkProfile profile = library.framework("pytorch");
  CHECK(profile.memory_model == MemoryModel::kTransformers);
  CHECK(profile.loop == TrainerLoop::kScript);
  CHECK(profile.fsdp_ends == FsdpEnds::kRoot);
  apply_option(profile, "fsdp_reduce_dtype", "bf16", library);
  CHECK(profile.fsdp_reduce_dtype == DType::kBf16);
  CHECK(library.framework("transformers").loop == TrainerLoop::kTrainer);
}

TEST_CASE("a framework is known by what its users call it") {
  const Library library;
  for (const char* const name :
       {"Megatron-LM", "megatron_lm", "mcore", "Megatron-Core", "NeMo", "bridge", "MEGATRON"}) {
    CHECK_MESSAGE(library.framework_named(name) == "megatron", name);
    CHECK_MESSAGE(library.framework(name).name == "megatron", name);
  }
  CHECK(library.framework_named("HF") == "transformers");
  CHECK(library.framework_named("DeepSpeed") == "deepspeed");
  CHECK(library.framework_named("nanotron@v0.4") == "nanotron@v0.4");
  for (const char* const name : {"fsdp", "accelerate", "verl", "unsloth", "megatrn", ""}) {
    CHECK_MESSAGE(library.framework_named(name).empty(), name);
  }
  CHECK(message_of([] { Library().framework("LLaMA_Factory"); }).find("--from its configuration") !=
        std::string::npos);
}

TEST_CASE("an unknown framework is refused with the ones that are known") {
  CHECK(message_of([] { Library().framework("megatrn"); }) ==
        "framework: found \"megatrn\", expected one of deepspeed, deepspeed@0.16.9, "
        "deepspeed@0.19.5, fujii2024, megatron-core-local, megatron, nanotron, nanotron@v0.4, "
        "nanotron@v0.5-dev, native, pytorch, torchtitan, transformers; did you mean \"megatron\"?");
  CHECK(
      message_of([] { Library().framework("Horovod"); }) ==
      "framework: found \"Horovod\", expected pytorch with --zero 0, which comes nearest: Horovod "
      "sums whole gradients as DistributedDataParallel does");
  CHECK(message_of([] { Library().framework("trl"); }).find("--from its configuration") !=
        std::string::npos);
  CHECK_FALSE(Library().known_framework("other-trainer"));
  CHECK_FALSE(Library().known_framework("../frameworks/megatron"));
}
