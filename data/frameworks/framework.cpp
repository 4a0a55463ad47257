// Framework profiles: a file selects behaviours and gives numbers; its options are the fields of
// FrameworkProfile that a user may set. What hosts take is read in host_numbers.cpp.
#include "data/frameworks/framework.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/arguments/run_settings.h"
#include "data/frameworks/host_numbers.h"
#include "data/frameworks/profile_fields.h"
#include "data/read/count_word.h"
#include "data/read/json_message.h"
#include "data/read/library.h"
#include "estimator/frameworks/framework.h"

namespace shardplan {
namespace {

// "true", "8", "1.5", "te_fused"
std::string as_text(const JsonValue& value) {
  switch (value.kind) {
    case JsonKind::kBool: return value.boolean ? "true" : "false";
    case JsonKind::kInteger: return std::to_string(value.integer);
    case JsonKind::kReal: return exact_text(value.real);
    case JsonKind::kString: return value.string;
    default: return "";
  }
}

// What a value of this option must be, for messages.
std::string expected_of(const ProfileOption& option) {
  if (option.type == "bool") {
    return "true or false";
  }
  if (option.type == "choice") {
    return "one of " + joined(option.choices);
  }
  if (option.type == "integer") {
    return "an integer from " + std::to_string(std::llround(option.low)) + " to " +
           std::to_string(std::llround(option.high));
  }
  return "a number from " + exact_text(option.low) + " to " + exact_text(option.high);
}

bool accepts(const ProfileOption& option, const JsonValue& value) {
  if (option.type == "bool") {
    return value.kind == JsonKind::kBool;
  }
  if (option.type == "choice") {
    return value.kind == JsonKind::kString &&
           std::ranges::find(option.choices, value.string) != option.choices.end();
  }
  const bool is_number = value.kind == JsonKind::kInteger ||
                         (value.kind == JsonKind::kReal && option.type == "number");
  return is_number && value.real >= option.low && value.real <= option.high;
}

// One declaration; `value_key` is "default" of an option, "value" of what is fixed.
ProfileOption read_declaration(const std::string& name, const JsonValue& declaration,
                               const char* value_key, const std::string& file,
                               FrameworkProfile& profile) {
  ObjectReader reader(declaration, file);
  const std::string type = profile_field_type(name);
  if (type.empty()) {
    throw reader.error("", "found an unknown name, expected a field of the profile");
  }
  ProfileOption option;
  option.name = name;
  option.type = reader.string("type");
  if (option.type != type) {
    throw reader.error("type", "found \"" + option.type + "\", expected \"" + type + "\"");
  }
  if (option.type == "choice") {
    option.choices = reader.strings("choices");
    for (const std::string& word : option.choices) {
      if (!profile_field_knows(name, word)) {
        throw reader.error("choices", "found \"" + word + "\", expected words of this choice");
      }
    }
  }
  if (option.type == "integer" || option.type == "number") {
    option.low = reader.number("low", -1e15, 1e15);
    option.high = reader.number("high", option.low, 1e15);
  }
  option.framework_default = reader.string_or("framework_default", "");
  option.assumed = reader.boolean_or("assumed", false);
  option.meaning = reader.string("meaning");
  option.source = reader.string("source");
  const JsonValue& value = reader.value(value_key);
  if (!accepts(option, value)) {
    throw reader.error(value_key, "found " + describe(value) + ", expected " + expected_of(option));
  }
  option.default_value = as_text(value);
  set_profile_field(profile, name, value);
  reader.finish();
  return option;
}

std::string path_of(const std::string& framework) {
  return "frameworks/" + framework + ".json";
}

MemoryModel read_memory_model(ObjectReader& reader) {
  const std::string word = reader.string("memory_model");
  const std::optional<MemoryModel> model = value_of<MemoryModel>(word);
  if (!model) {
    throw reader.error("memory_model", "found \"" + word + "\", expected a known memory model");
  }
  return *model;
}

// A declaration stands in the place of the base's, if that has one.
void declare(std::vector<ProfileOption>& declared, const ProfileOption& option) {
  const auto same = std::ranges::find(declared, option.name, &ProfileOption::name);
  if (same == declared.end()) {
    declared.push_back(option);
  } else {
    *same = option;
  }
}

void read_declarations(ObjectReader& reader, const std::string& file, ProfileFile& result) {
  for (const JsonMember& member : reader.value("options").members) {
    declare(result.options,
            read_declaration(member.name, member.value, "default", file, result.profile));
  }
  for (const JsonMember& member : reader.value("fixed").members) {
    const ProfileOption fixed =
        read_declaration(member.name, member.value, "value", file, result.profile);
    std::erase_if(result.options,
                  [&](const ProfileOption& option) { return option.name == fixed.name; });
    if (fixed.name.starts_with("default_")) {
      declare(result.plan_defaults, fixed);
    }
  }
}

// The profile that a version differs from, itself without a base: one more file says all.
ProfileFile read_base(ObjectReader& reader, const Library& library) {
  const std::string base = reader.string("base");
  if (!library.known_framework(base)) {
    throw reader.error("base", "found \"" + shown(base, Encoding::kUtf8) + "\", expected one of " +
                                   joined(library.framework_names()) +
                                   suggestion(base, library.framework_names()));
  }
  const JsonFile& source = library.parse(path_of(base));
  if (ObjectReader(source.json, source.file).has("base")) {
    throw reader.error("base", "found \"" + base + "\", which has a base of its own, expected a " +
                                   "profile without one");
  }
  return library.profile(base);
}

ProfileFile read_profile(const Library& library, const std::string& framework) {
  const JsonFile& source = library.parse(path_of(framework));
  ObjectReader reader(source.json, source.file);
  ProfileFile result;
  if (reader.has("base")) {
    result = read_base(reader, library);
    result.profile.name = reader.string_or("name", result.profile.name);
  } else {
    result.profile.name = reader.string("name");
    set_framework(result.profile, read_memory_model(reader));
  }
  result.profile.version = reader.string("version");
  reader.string("source");
  read_declarations(reader, source.file, result);
  read_host_numbers(reader, source.file, result.profile, result.host_numbers);
  reader.finish();
  return result;
}

const ProfileOption& find_option(const std::vector<ProfileOption>& options, const std::string& name,
                                 const std::string& opening, const std::string& framework) {
  std::vector<std::string> names;
  for (const ProfileOption& option : options) {
    if (option.name == name) {
      return option;
    }
    names.push_back(option.name);
  }
  throw InputError(opening + "found unknown option \"" + shown(name, Encoding::kUnchecked) +
                   "\", expected " +
                   (names.empty() ? "none: profile " + framework + " has no options"
                                  : "one that `shardplan list options " + framework + "` shows") +
                   suggestion(name, names));
}

// A word of the command line as the JSON value that a case line would hold.
JsonValue value_of_word(const ProfileOption& option, const std::string& word) {
  JsonValue value;
  value.kind = JsonKind::kString;
  value.string = word;
  if (option.type == "bool" && (word == "true" || word == "false")) {
    value.kind = JsonKind::kBool;
    value.boolean = word == "true";
  }
  const char* const end = word.data() + word.size();
  double number = 0;
  const std::from_chars_result read = std::from_chars(word.data(), end, number);
  if (option.type == "number" && read.ec == std::errc{} && read.ptr == end) {
    value.kind = JsonKind::kReal;
    value.real = number;
  }
  if (const auto count = count_of(word); option.type == "integer" && count) {
    value.kind = JsonKind::kInteger;
    value.integer = *count;
    value.real = static_cast<double>(*count);
  }
  return value;
}

}  // namespace

namespace {

// Frameworks by names that are spelled without capitals, dashes and blanks.
struct OtherName {
  std::string_view name;
  std::string_view framework;
};

// Names of a profile's framework, and of programs that are Megatron-core or a Trainer inside.
constexpr std::array kMeant = std::to_array<OtherName>({
    {.name = "bridge", .framework = "megatron"},
    {.name = "hf", .framework = "transformers"},
    {.name = "hftrainer", .framework = "transformers"},
    {.name = "huggingface", .framework = "transformers"},
    {.name = "mcore", .framework = "megatron"},
    {.name = "megatronbridge", .framework = "megatron"},
    {.name = "megatroncore", .framework = "megatron"},
    {.name = "megatronlm", .framework = "megatron"},
    {.name = "nemo", .framework = "megatron"},
    {.name = "torch", .framework = "pytorch"},
    {.name = "trainer", .framework = "transformers"},
});

// Frameworks without a profile of their own, and what comes nearest to them.
constexpr std::string_view kTrainer =
    "transformers or deepspeed, which it trains by, or --from its configuration";
constexpr std::string_view kReinforced =
    "megatron, pytorch or transformers, which train its policy: reinforcement learning with its "
    "rollouts is not covered";
constexpr std::array kNearest = std::to_array<OtherName>({
    {.name = "accelerate", .framework = kTrainer},
    {.name = "axolotl", .framework = kTrainer},
    {.name = "ddp", .framework = "pytorch with --zero 0"},
    {.name = "fsdp", .framework = "pytorch with --zero 3"},
    {.name = "fsdp2", .framework = "pytorch with --zero 3, or torchtitan"},
    {.name = "horovod",
     .framework = "pytorch with --zero 0, which comes nearest: Horovod sums whole gradients as "
                  "DistributedDataParallel does"},
    {.name = "jax",
     .framework = "native or torchtitan, which come nearest: what XLA keeps is not described"},
    {.name = "lightning",
     .framework = "pytorch, which comes nearest: its strategies are DDP and FSDP"},
    {.name = "llamafactory", .framework = kTrainer},
    {.name = "msswift", .framework = kTrainer},
    {.name = "openrlhf", .framework = kReinforced},
    {.name = "swift", .framework = kTrainer},
    {.name = "tensorflow",
     .framework = "pytorch, which comes nearest for a model of the same sizes: what TensorFlow "
                  "keeps is not described"},
    {.name = "trl", .framework = kTrainer},
    {.name = "unsloth",
     .framework = "transformers, which comes nearest: Unsloth's own kernels and checkpoints in "
                  "host memory take less and are not described"},
    {.name = "verl", .framework = kReinforced},
});

std::string bare_name(const std::string& name) {
  std::string bare = in_lower_case(name);
  std::erase_if(bare, [](char letter) { return letter == '-' || letter == '_' || letter == ' '; });
  return bare;
}

template <class Names>
std::string named_in(const Names& names, const std::string& name) {
  const auto* const found = std::ranges::find(names, bare_name(name), &OtherName::name);
  return found == names.end() ? "" : std::string(found->framework);
}

}  // namespace

std::string Library::framework_named(const std::string& word) const {
  for (const std::string& name : {word, in_lower_case(word), named_in(kMeant, word)}) {
    if (known_framework(name)) {
      return name;
    }
  }
  return "";
}

std::string Library::key_of(const FrameworkProfile& profile) const {
  const std::string versioned = profile.name + "@" + profile.version;
  return known_framework(versioned) ? versioned : profile.name;
}

bool Library::known_framework(const std::string& name) const {
  return !is_path(name) && has(path_of(name));
}

FrameworkProfile Library::framework(const std::string& name, const std::string& where) const {
  const std::string known = framework_named(name);
  if (known.empty()) {
    const std::string nearest = named_in(kNearest, name);
    throw InputError((where.empty() ? "framework: " : where) + "found \"" +
                     shown(name, Encoding::kUnchecked) + "\", expected " +
                     (nearest.empty() ? "one of " + joined(framework_names()) +
                                            suggestion(in_lower_case(name), framework_names())
                                      : nearest));
  }
  return profile(known).profile;
}

const ProfileFile& Library::profile(const std::string& framework) const {
  if (const auto read = read_->profiles.find(framework); read != read_->profiles.end()) {
    return read->second;
  }
  return read_->profiles[framework] = read_profile(*this, framework);
}

std::vector<ProfileOption> profile_options(const Library& library, const std::string& framework) {
  return library.profile(framework).options;
}

std::vector<ProfileOption> profile_plan_defaults(const Library& library,
                                                 const std::string& framework) {
  return library.profile(framework).plan_defaults;
}

void apply_options(FrameworkProfile& profile, const JsonValue& options, const std::string& file,
                   const Library& library) {
  ObjectReader reader(options, file);  // refuses what is not an object
  const std::vector<ProfileOption>& known = library.profile(library.key_of(profile)).options;
  for (const auto& [name, value] : options.members) {
    const std::string opening = place(file, value.line, value.pointer);
    const ProfileOption& option = find_option(known, name, opening, profile.name);
    if (!accepts(option, value)) {
      throw InputError(opening + "found " + describe(value) + ", expected " + expected_of(option));
    }
    set_profile_field(profile, name, value);
  }
}

namespace {

void apply_known_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                        const std::vector<ProfileOption>& known, const std::string& where) {
  const std::string opening = where.empty() ? "option " + name + ": " : where;
  const ProfileOption& option = find_option(known, name, opening, profile.name);
  const JsonValue value = value_of_word(option, word);
  if (!accepts(option, value)) {
    throw InputError(opening + "found \"" + shown(word, Encoding::kUnchecked) + "\", expected " +
                     expected_of(option));
  }
  set_profile_field(profile, name, value);
}

}  // namespace

void apply_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                  const Library& library, const std::string& where) {
  apply_known_option(profile, name, word, library.profile(library.key_of(profile)).options, where);
}

std::string try_option(FrameworkProfile& profile, const std::string& name, const std::string& word,
                       const std::vector<ProfileOption>& options) {
  if (std::ranges::find(options, name, &ProfileOption::name) != options.end()) {
    apply_known_option(profile, name, word, options, "");
    return "";
  }
  const std::string fixed = profile_field_text(profile, name);
  return fixed == word ? ""
                       : "profile " + profile.name + " has " + name + " " + fixed + ", not " + word;
}

}  // namespace shardplan
