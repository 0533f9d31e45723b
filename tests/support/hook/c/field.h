/* FIELD(name, of) makes lab_get_name and lab_set_name, by which a test reads and sets `of`. */
#define FIELD(name, of)                                                                                                \
  int64_t lab_get_##name(void) {                                                                                       \
    return (int64_t)(of);                                                                                              \
  }                                                                                                                    \
  void lab_set_##name(int64_t to) {                                                                                    \
    of = (__typeof__(of))to;                                                                                           \
  }
