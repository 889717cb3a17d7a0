// SPDX-License-Identifier: Apache-2.0
#include "support/other_locale.h"

#include <cctype>
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

// Its own definition, because the package with others may be missing.
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

// The characters of a class, as those of C.
std::string characters_of(const char* name, int (*is_inside)(int)) {
  std::string text = name;
  for (int c = 0; c < 128; ++c) {
    if (is_inside(c) != 0) {
      text += (text == name ? " " : ";") + symbol(c);
    }
  }
  return text + "\n";
}

// Pairs of a character and its other case, except for `i` and `I`.
std::string mapping(const char* name, int (*changed)(int)) {
  std::string text = name;
  for (int c = 0; c < 128; ++c) {
    if (changed(c) != c && std::tolower(c) != 'i') {
      text += (text == name ? " (" : ";(") + symbol(c) + "," +
              symbol(changed(c)) + ")";
    }
  }
  return text + "\n";
}

std::string definition() {
  return "LC_NUMERIC\ndecimal_point \"" + symbol(',') +
         "\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\nLC_CTYPE\n" +
         characters_of("upper", std::isupper) +
         characters_of("lower", std::islower) +
         characters_of("alpha", std::isalpha) +
         characters_of("digit", std::isdigit) +
         characters_of("xdigit", std::isxdigit) +
         characters_of("space", std::isspace) +
         characters_of("blank", std::isblank) +
         characters_of("cntrl", std::iscntrl) +
         characters_of("punct", std::ispunct) +
         characters_of("graph", std::isgraph) +
         characters_of("print", std::isprint) +
         mapping("toupper", std::toupper) + mapping("tolower", std::tolower) +
         "END LC_CTYPE\n";
}

} // namespace

OtherLocale::OtherLocale() {
  // It warns about missing categories, which is not an error.
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
