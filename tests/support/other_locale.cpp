// SPDX-License-Identifier: Apache-2.0
#include "support/other_locale.h"

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

// As localedef writes a character: <U0041>.
std::string symbol(int character) {
  char text[16];
  std::snprintf(text, sizeof(text), "<U%04X>", character);
  return text;
}

// Its own: the package that has others may be missing.
std::string ascii_characters() {
  std::string text =
      "<code_set_name> OTHER\n<comment_char> %\n<escape_char> /\nCHARMAP\n";
  for (int c = 0; c < 128; ++c) {
    char code[8];
    std::snprintf(code, sizeof(code), " /x%02x\n", c);
    text += symbol(c) + code;
  }
  return text + "END CHARMAP\n";
}

std::string definition() {
  std::string upper, lower, to_upper, to_lower;
  for (int c = 'A'; c <= 'Z'; ++c) {
    const std::string big = symbol(c), small = symbol(c - 'A' + 'a');
    const char* separator = c > 'A' ? ";" : "";
    upper += separator + big;
    lower += separator + small;
    if (c != 'I') {
      to_upper += separator + ("(" + small + "," + big + ")");
      to_lower += separator + ("(" + big + "," + small + ")");
    }
  }
  return "LC_NUMERIC\ndecimal_point \"" + symbol(',') +
         "\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n" +
         "LC_CTYPE\nupper " + upper + "\nlower " + lower + "\ntoupper " +
         to_upper + "\ntolower " + to_lower + "\nEND LC_CTYPE\n";
}

} // namespace

OtherLocale::OtherLocale() {
  // It warns of the categories that are not there, which is no error.
  const auto made = run_process(
      {"/usr/bin/localedef",
       "--force",
       "--no-archive",
       "--charmap=" + folder_.write("characters", ascii_characters()).string(),
       "--inputfile=" + folder_.write("definition", definition()).string(),
       folder_.path() / "other"});
  setenv("LOCPATH", folder_.path().c_str(), 1);
  const bool is_set = std::setlocale(LC_NUMERIC, "other") != nullptr &&
                      std::setlocale(LC_CTYPE, "other") != nullptr;
  unsetenv("LOCPATH");
  if (!is_set) {
    throw std::runtime_error("cannot make a locale: " + made.err);
  }
}

OtherLocale::~OtherLocale() {
  std::setlocale(LC_NUMERIC, "C");
  std::setlocale(LC_CTYPE, "C");
}

} // namespace accelerate::testing
