package spring;

import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Profile;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** The service: the name of the provider that was called. */
@Profile("provider")
@RestController
class Provider {
    private final String name;

    Provider(@Value("${apps.name}") String name) {
        this.name = name;
    }

    @GetMapping("/name")
    String name() {
        return name;
    }
}
