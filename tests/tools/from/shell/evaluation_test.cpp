// What a launch script computes: numbers, lists, loops, what commands read and whether they
// succeed.
#include <doctest/doctest.h>

#include "tests/data/message_of.h"
#include "tests/tools/from/script_values.h"
#include "tools/from/shell.h"
#include "tools/from/shell/read_shell.h"
#include "tools/from/shell/words.h"

namespace shardplan {
namespace {

// The choices that a script leaves, as they stand in it.
std::vector<std::string> choices_of(const std::string& script) {
  std::vector<std::string> all;
  for (const ShellChoice& choice : read_shell(script, "x.sh").choices) {
    all.push_back(choice.text);
  }
  return all;
}

std::string answer(const std::string& script) {
  std::vector<std::string> notes;
  return message_of([&] {
    settings_from_shell(script +
                            "\ntorchrun --nproc_per_node 8 x.py --num-layers 4 "
                            "--micro-batch-size $P",
                        "run.sh", notes, {});
  });
}

struct Case {
  std::string script;
  std::string value;
};

void check(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    CHECK_MESSAGE(value_behind(each.script) == each.value, each.script);
  }
}

}  // namespace

TEST_CASE("arithmetic is C's, in the numbers that a shell writes") {
  check({{"P=$((010/2))", "4"},
         {"P=$[2*2]", "4"},
         {"P=$((2**2))", "4"},
         {"P=$((2**3**2))", "512"},
         {"P=$((1<<2))", "4"},
         {"P=$((1 << (1 + 1)))", "4"},
         {"P=$((0x4))", "4"},
         {"P=$((10#04 + 2#101))", "9"},
         {"P=$((-2*-2))", "4"},
         {"P=$((- -4))", "4"},
         {"P=$((-2**2))", "4"},
         {"P=$((7 & 12 | 1 ^ 3))", "6"},
         {"P=$((~0 + !0))", "0"},
         {"P=$((-7 / 2 * 10 + -7 % 2))", "-31"},
         {"P=$((1 + 2 * 3 - 8 / 2 % 3))", "6"},
         {"P=$((1 < 2 == 2 > 1))", "1"},
         {"P=$((0 ? 1 : 2 ? 3 : 4))", "3"},
         {"P=$((1, 2))", "2"},
         {"Q=2+3; P=$((Q * 2))", "10"},
         {"Q=2; P=$(( ${Q} + ${R:-2} ))", "4"},
         {"P=$(( $(echo 2) * 2 ))", "4"},
         {"A=(1 2); P=$(( A[1] + ${#A[@]} ))", "4"},
         {"P=$((08))", "$((08))"},
         {"P=$((1 +))", "$((1 +))"},
         {"P=$((1 / 0))", "$((1 / 0))"},
         {"P=$((Q * 0))", "$((Q * 0))"},
         {"P=$((0 && Q))", "0"},
         {"P=$((Q || 1))", "1"}});
  CHECK(is_unknown("P=$((9223372036854775807 + 1))"));
}

TEST_CASE("arithmetic sets variables, as far as it is evaluated") {
  check({{"P=2; ((P*=2))", "4"},
         {"P=2; ((P = P + 1, P <<= 1))", "6"},
         {"P=3; let P++", "4"},
         {"P=5; ((--P))", "4"},
         {"P=2; let P=4", "4"},
         {"P=2; let P*=2", "4"},
         {"P=2; let 'P += 1' 'P *= 2'", "6"},
         {"P=2; Q=$((P += 1))", "3"},
         {"P=2; Q=$((P++)); P=$P$Q", "32"},
         {"P=2; (( P == 2 )) && P=4", "4"},
         {"P=2; (( 0 && (P = 4) )); (( 1 ? 0 : (P = 4) ))", "2"},
         {"declare -i P=2*2; P+=3", "7"},
         {"P=2; false && ((P = 4)); if false; then echo $((P = 4)); fi", "2"}});
  CHECK(is_unknown("P=2; ((P *= $(nproc)))"));
  CHECK(is_unknown("P=2; (( $(nproc) > 8 && (P = 4) ))"));
}

TEST_CASE("what printf, read and mapfile set is known where their input is") {
  check({{"printf -v P %d 4", "4"},
         {"printf -v P '%03d-%s%%' 7 a", "007-a%"},
         {"P=$(printf '%s,' 1 2)", "1,2,"},
         {"read P <<< \"4 8\"", "4 8"},
         {"read Q P <<< '4 8 9'", "8 9"},
         {"IFS=, read -ra A <<< '1,4'; P=${A[1]}; Q='1 2'; for i in $Q; do P+=$i; done", "412"},
         {"IFS=: read Q P R <<< 'a::b'", ""},
         {"mapfile -t P < <(printf '4\\n5\\n')", "4"},
         {"P=2; echo 4 | read P", "2"}});
  for (const std::string script :
       {"read P", "read -p 'P? ' P < file", "read -n 1 P <<< 4", "mapfile -t P < <(nproc)",
        "readarray P < x", "printf -v P %f 2", "read P <<< $(hostname)"}) {
    CHECK_MESSAGE(is_unknown("P=2; " + script), script);
  }
}

TEST_CASE("another name of a variable makes both unknown") {
  CHECK(is_unknown("P=2; f() { local -n r=$1; r=4; }; f P"));
}

TEST_CASE("a loop counts and reads as often as a shell does") {
  check({{"P=0; for ((i = 0; i < 4; i++)); do P=$((P+1)); done", "4"},
         {"for ((i=1, j=4; i < j; i+=2))\ndo\n[ $i = 9 ] && continue; P=$i; done", "3"},
         {"for ((;;)); do P=${P:-0}1; [ $P = 0111 ] && break; done", "0111"},
         {"P=0; while read l; do P=$((P+l)); done <<EOF\n1\n2\n4\nEOF\n", "7"},
         {"P=0; while read l; do P=$((P+l)); done < <(seq 3)", "6"},
         {"P=0; while IFS== read k v; do P=$v$P; done <<< 'a=4'", "40"},
         {"i=0; while [ $i -lt 100 ]; do i=$((i+1)); P=$((i/25)); done", "4"},
         {"P=1; until [ $P -ge 4 ]; do ((P++)); done", "4"},
         {"P=1; for i in {4..2}; do P=$i; done", "2"},
         {"f() { for x; do P=$x; done; }; f 1 4", "4"},
         {"P=2; cat x | while read l; do P=4; done; { P=3; } | cat", "2"}});
}

TEST_CASE("what a loop of an unknown number of turns changes is not known behind it") {
  for (const std::string script :
       {"for h in $(cat hosts); do P=$((P+1)); done", "for h in $HOSTS; do P=$((P+1)); done",
        "while read l; do P=$((P+1)); done < hosts", "for i in {1..9999}; do P=$i; done",
        "while ! ping x; do P=$((P+1)); done", "while true; do P=$((P+1)); done",
        "for ((i=0; i<$(nproc); i++)); do P=$i; done", "while true; do P=$((P+1)); run; done"}) {
    CHECK_MESSAGE(is_unknown("P=0; Q=2; " + script), script);
    CHECK_MESSAGE(value_behind("P=0; Q=2; " + script + "; P=$Q") == "2", script);
  }
  CHECK(value_behind("P=2; for h in \"$(hostname)\"; do P=4; done") == "4");
  CHECK(answer("P=2; while true; do sleep 1; done") == "no error");
}

TEST_CASE("what a process, a function or a command has of its own stays as it was behind a loop") {
  const auto loop = [](const std::string& body) {
    return "P=1; f() { local P=2; }; for h in $(cat hosts); do " + body + "; done";
  };
  check({{loop("(P=2)"), "1"},
         {loop("f"), "1"},
         {loop("P=2 run"), "1"},
         {loop("X=(1 4); Y=${X[1]}") + "; X=(1 4); P=${X[1]}", "4"},
         {"while IFS=, read a b; do :; done < hosts; L='1 4'; set -- $L; P=$2", "4"}});
}

TEST_CASE("entries of lists and maps are reckoned with, and set") {
  check({{"X=(1 2); Y=${X[1]}; X[1]=3; ((X[1]++)); P=$((X[1]))", "4"},
         {"declare -A M; a=3; M[a]=2; ((M[a]*=2)); P=${M[a]}${!M[@]}${#M[a]}", "4a1"},
         {"X=(); i=0; X[i++]=1; X[i++]=4; P=${X[-1]}$i", "42"},
         {"X=([5]=1 [2]=4); P=\"${!X[*]}\"", "2 5"},
         {"declare -ia X; X[1]=2*2; P=${X[1]}", "4"}});
  CHECK(is_unknown("X=($(cat hosts) 4); P=${X[1]}"));
  CHECK(is_unknown("X=($(cat hosts) 4); P=$((X[1]))"));
  CHECK(is_unknown("X=(1 2); mapfile -t X < hosts; P=${X[1]}"));
  CHECK(is_unknown("set -- $(cat hosts) 4; shift; P=$1"));
}

TEST_CASE("how many there are of what is not known is not known") {
  for (const std::string list :
       {"$(cat x)", "1 `cat x`", "$HOSTS", "${A[@]} $(cat x)", "\"${B[@]}\""}) {
    CHECK_MESSAGE(is_unknown("B=($(cat y)); A=(" + list + "); P=${#A[@]}"), list);
  }
  CHECK(value_behind("A=(\"$(cat x)\" 1); P=${#A[@]}") == "2");
  CHECK(is_unknown("H=$(hostname); P=${#H}"));
  CHECK(is_unknown("set -- $(cat x); P=$#"));
  CHECK(value_behind("H=abc; P=${#H}") == "3");
}

TEST_CASE("a job's list of nodes has as many as the job, where it says how many") {
  const std::string nodes =
      "N=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\nP=1\n"
      "if [ ${#N[@]} -gt 1 ]; then P=2; fi\n";
  CHECK(answer(nodes).find("'[ ${#N[@]} -gt 1 ]': found a condition that cannot be decided") !=
        std::string::npos);
  std::vector<std::string> notes;
  const RunSettings settings =
      settings_from_shell("#SBATCH --nodes=4\n" + nodes +
                              "torchrun --nproc_per_node 8 --nnodes ${#N[@]} x.py --num-layers $P",
                          "run.sh", notes, {});
  CHECK(settings.num_gpus == 32);
  CHECK(settings.arguments.front().values.front() == "2");
}

TEST_CASE("whether a program succeeds is a choice where something depends on it") {
  for (const std::string program :
       {"nvidia-smi | grep -q H200", "command -v nvcc", "f", "X=$(hostname)"}) {
    for (const std::string list : {" && P=4", " || P=4", " && P=4 || P=3"}) {
      const std::string found = answer("f() { ! false; grep x y; }; P=1; " + program + list);
      CHECK_MESSAGE(found.find(": found a condition that cannot be decided here, and "
                               "--micro-batch-size depends on it; expected --set P=VALUE") !=
                        std::string::npos,
                    found);
    }
  }
  CHECK(answer("P=1; mkdir -p x && cd x; cd y || exit 1; rm z || true; a && echo b") == "no error");
  CHECK(answer("P=1; a && b || exit; (c && d) || return; e && f; while g && h; do i; done") ==
        "no error");
}

TEST_CASE("$? is what the last command said, and unknown behind a program") {
  check({{"false; P=$?", "1"},
         {"true; P=$?", "0"},
         {"f() { return 3; }; f; P=$?", "3"},
         {"f() { if [ $1 = a ]; then return; fi; false; }; f a; P=$?; f b; P=$P$?", "01"},
         {"P=1; f() { [ x = y ]; }; f && P=4", "1"},
         {"P=1; X=$(false) || P=4", "4"},
         {"P=1; (exit 2); P=$?", "2"},
         {"! true; P=$?", "1"}});
  CHECK(is_unknown("grep -q x f; P=$?"));
  CHECK(choices_of("grep -q x f; if [ $? -eq 0 ]; then P=4; fi") ==
        std::vector<std::string>{"[ $? -eq 0 ]"});
  // It is expected to succeed.
  check({{"P=1; prepare; if [ $? -eq 0 ]; then P=4; fi", "4"},
         {"P=1; prepare; E=$?; [[ $E -ne 0 ]] && P=4", "1"}});
}

TEST_CASE("patterns know sets and classes of letters") {
  check({{"P=1; case 7b in [[:digit:]]*) P=4;; esac", "4"},
         {"P=1; case 7b in [![:digit:]]*) P=4;; esac", "1"},
         {"P=1; [[ a-b == *[_[:punct:]]? ]] && P=4", "4"},
         {"P=1; [[ x]y == x[]]y ]] && P=4", "4"},
         {"P=1; [[ 'a[b' == 'a['* ]] && P=4", "4"},
         {"Q=run-128; P=${Q##*[^0-9]}", "128"},
         {"Q=llama7b; P=${Q%%[[:digit:]]*}", "llama"}});
}

TEST_CASE("numbers between [[ and ]] are expressions, to [ they are numbers") {
  check({{"P=1; N=3; [[ N -gt 2 ]] && P=4", "4"},
         {"P=1; N=3; [[ N+1 -eq 2*2 ]] && P=4", "4"},
         {"P=1; N=; [[ $N -eq 0 ]] && P=4", "4"},
         {"P=1; [[ 010 -eq 8 ]] && P=4", "4"},
         {"P=1; [ 010 -eq 10 ] && P=4", "4"},
         {"P=1; N=3; [ N -gt 2 ] && P=4", "1"}});
}

TEST_CASE("an empty variable is a word of a condition between [[ and ]]") {
  check({{"P=1; N=; [[ -n $N ]] && P=4", "1"},
         {"P=1; N=; [[ -z $N ]] && P=4", "4"},
         {"P=1; N=; [[ $N == '' && $N != a ]] && P=4", "4"},
         {"P=1; N=; [[ $N ]] || P=4", "4"},
         {"P=1; N=; case $N in a) P=2;; $N) P=4;; esac", "4"}});
}

TEST_CASE("-v says whether a variable is set") {
  check({{"P=1; [ -v P ] && P=4", "4"},
         {"P=1; Q=; [[ ! -v Q || -v R ]] || P=4", "4"},
         {"P=1; A=(1 2); [[ -v A[1] ]] && P=4", "4"}});
  CHECK(choices_of("[ -v R ] && P=4") == std::vector<std::string>{"[ -v R ]"});
}

TEST_CASE("parts of values and lists are cut as a shell cuts them") {
  check({{"S=x4y; P=${S:1:1}", "4"},
         {"S=x45; P=${S:1}", "45"},
         {"S=x45; P=${S: -1}", "5"},
         {"S=x45; P=${S:0:-2}", "x"},
         {"V=Q; Q=4; P=${!V}", "4"},
         {"V=Q; P=${!V:-3}", "3"},
         {"f() { n=2; P=${!n}; }; f 1 4", "4"},
         {"X=(1 2 4); P=${X[-1]}", "4"},
         {"X=(1 2 4); Y=(${X[@]:1:2}); P=${#Y[@]}${Y[1]}", "24"},
         {"X=(a.sh b.sh); P=\"${X[*]%.sh}\"", "a b"},
         {"X=(1 2 4); for i in ${!X[@]}; do P+=$i; done", "012"},
         {"f() { P=\"${@:2}\"; }; f 1 2 4", "2 4"}});
  for (const std::string script : {"P=${!V}", "V=$(x); P=${!V}", "X=$(x); P=${X:1}",
                                   "X=($(x)); for i in ${!X[@]}; do P+=$i; done"}) {
    CHECK_MESSAGE(is_unknown(script), script);
  }
}

TEST_CASE("IFS says where words are split and how they are joined") {
  check({{"IFS=,; L=1,4; set -- $L; P=$2", "4"},
         {"L=a,,4; OLD=$IFS; IFS=,; A=($L); IFS=$OLD; P=${A[2]}${#A[@]}", "43"},
         {"IFS=; L='1 4'; set -- $L; P=$#", "1"},
         {"A=(1 2); P=$(IFS=+; echo \"$((${A[*]}))\")", "3"},
         {"A=(1 2); P=$(IFS=,; echo \"${A[*]}\")", "1,2"}});
}

}  // namespace shardplan
